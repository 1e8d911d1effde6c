#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/backend.h"

namespace tessera {

// Peak performance of a device by its vendor's own means. tessera-bench measures ops against it.
// All functions start their work on the stream and do not wait for it.
struct DeviceProbe {
  std::string device;  // name as reported by the driver
  int32_t multiprocessors = 0;
  int64_t cache_bytes = 0;  // largest cache
  void (*copy)(void* to, const void* from, int64_t bytes, Stream) = nullptr;
  // Requires: address and size are multiples of 16 bytes. May change the memory.
  void (*read)(void* memory, int64_t bytes, Stream) = nullptr;
  // A product of two large matrices in that arithmetic, sums in f32, by the fastest algorithm.
  // Returns: its flops. Operands are in `memory`, multiply_bytes() bytes with any content. 0 bytes:
  // the device has no such product.
  int64_t (*multiply_bytes)(WeightFormat arithmetic) = nullptr;
  int64_t (*multiply)(WeightFormat arithmetic, std::byte* memory, Stream) = nullptr;
};

}  // namespace tessera
