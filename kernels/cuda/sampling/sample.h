#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/stream/launch_shape.h"

namespace tessera::cuda {

inline constexpr int32_t kRowThreads = 1024;  // threads of a block; fewer for a small vocabulary
inline constexpr int32_t kThreadTokens = 8;   // tokens of a thread at least

// Returns: blocks that share a row, a power of 2. Each has a multiprocessor of its own, and at
// least kThreadTokens tokens for each of kRowThreads threads, because more blocks would mostly
// wait.
constexpr int32_t row_blocks(int64_t rows, int64_t vocab, const simt::DeviceLimits& device) {
  int64_t blocks = 1;
  while (2 * blocks <= device.cluster && 2 * blocks * rows <= device.multiprocessors &&
         2 * blocks * kRowThreads * kThreadTokens <= vocab) {
    blocks *= 2;
  }
  return static_cast<int32_t>(blocks);
}

// The op `sample` (ops.h), by `blocks` blocks a row. The result does not depend on their number.
// Requires: `blocks` is at most DeviceLimits::cluster of the stream's device.
void sample_by_blocks(const SampleArgs& args, int32_t blocks, Stream stream);

}  // namespace tessera::cuda
