#pragma once

#include <cstdint>
#include <source_location>

namespace tessera::simt::emulation {

// The effect of a barrier in this process. tests/kernels/cuda/faults leaves out one barrier, by its
// place in the source, and expects that some test fails. Environment:
//   TESSERA_EMULATED_FAULT=missing:kv_store.cu:53   that barrier does nothing
//   TESSERA_EMULATED_FAULT=warp:kv_store.cu:53      that barrier of a block serves its warps alone
//   TESSERA_EMULATED_FAULT=block:row_threads.h:63   that barrier of a cluster serves blocks alone
//   TESSERA_EMULATED_BARRIERS=1                     prints the places of all barriers that ran
enum class BarrierKind : uint8_t { cluster, block, warp, none };

// Returns: the kind that the barrier at `place` has in this process; its source has `intended`.
BarrierKind barrier_at(const std::source_location& place, BarrierKind intended);

}  // namespace tessera::simt::emulation
