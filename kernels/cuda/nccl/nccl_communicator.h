#pragma once

#include <memory>

#include "kernels/communicator.h"

namespace tessera::cuda {

// Ranks that are GPUs, a process each, on one machine or several: NCCL finds the way between them.
// `hosts` connects the processes, and does what is between hosts. Collective: waits until all of
// them have called it, each with its GPU current. Sums are on the stream that they are asked for
// on, like any op. Aborts with NCCL's own words where that fails.
std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> hosts);

}  // namespace tessera::cuda
