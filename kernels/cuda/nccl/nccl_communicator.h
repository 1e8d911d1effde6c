#pragma once

#include <memory>

#include "kernels/communicator.h"

namespace tessera::cuda {

// Creates a communicator for ranks with one GPU and one process each, on one or several machines;
// NCCL chooses the transport. `hosts` connects the processes and serves the collectives between
// hosts; it is moved into the result. Collective: waits until all ranks have called it.
// Requires: each rank's GPU is current. Sums run on the stream that the caller passes, like any op.
// Errors: aborts with NCCL's error text.
std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> hosts);

}  // namespace tessera::cuda
