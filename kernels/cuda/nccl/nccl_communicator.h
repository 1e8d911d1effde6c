#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "kernels/communicator.h"

namespace tessera::cuda {

// Names a group of ranks. One rank makes it; whatever started them brings the bytes to the others.
using NcclGroup = std::array<std::byte, 128>;
NcclGroup make_nccl_group();

// Ranks that are GPUs, a process each, on one machine or several: NCCL finds the way between them.
// Waits until all `ranks` of the group have called it, each with its GPU current. Sums are on the
// stream that they are asked for on, like any op. Aborts with NCCL's own words where that fails.
std::unique_ptr<Communicator> make_nccl_communicator(const NcclGroup& group, int32_t rank,
                                                     int32_t ranks);

}  // namespace tessera::cuda
