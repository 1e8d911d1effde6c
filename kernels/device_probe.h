#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/backend.h"

namespace tessera {

// Bytes of a device's memory, as its driver reports them.
struct DeviceMemoryUse {
  int64_t free = 0;
  int64_t total = 0;
};

// A device's memory, and its peak performance by its vendor's own means: tessera-bench measures ops
// against it. Functions with a stream start their work on it and do not wait.
struct DeviceProbe {
  std::string device;  // name as reported by the driver
  int32_t multiprocessors = 0;
  int64_t cache_bytes = 0;                // largest cache
  DeviceMemoryUse (*memory)() = nullptr;  // null: not known
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
