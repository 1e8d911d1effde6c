#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/backend.h"

namespace tessera {

// What a device can do at best, by its maker's own means: what tessera-bench measures ops against.
// All is started on the stream, and not waited for.
struct DeviceProbe {
  std::string device;  // its name, as its driver has it
  int32_t multiprocessors = 0;
  int64_t cache_bytes = 0;  // of the largest cache
  void (*copy)(void* to, const void* from, int64_t bytes, Stream) = nullptr;
  // Bytes and address: multiples of 16. The memory may change.
  void (*read)(void* memory, int64_t bytes, Stream) = nullptr;
  // A product of two large matrices in that arithmetic, sums in f32, by the algorithm that is best
  // for it. Returns its flops. Operands lie in `memory`, multiply_bytes() of it, whatever it holds;
  // 0 bytes: the device has no such product.
  int64_t (*multiply_bytes)(WeightFormat arithmetic) = nullptr;
  int64_t (*multiply)(WeightFormat arithmetic, std::byte* memory, Stream) = nullptr;
};

}  // namespace tessera
