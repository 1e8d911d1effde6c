#pragma once

#include "kernels/cuda/simt/simt.h"
#include "kernels/ops/attention.h"

namespace tessera::cuda {

// Rotation of heads, as RopeArgs (kernels/ops/layers.h) states it.

// Elements i and i + rotary_dim / 2 of a head.
struct HeadPair {
  float first;
  float second;
};
TESSERA_DEVICE HeadPair rotated(const HeadPair& pair, float cos, float sin) {
  return {simt::fma(pair.first, cos, -pair.second * sin),
          simt::fma(pair.first, sin, pair.second * cos)};
}

// Angles of one position.
struct Angles {
  const float* cos;  // [half]
  const float* sin;  // [half]
  int32_t half;      // rotary_dim / 2
};

// Returns: the factor of a query's element in a frame (KeyFrame); 1 without a frame.
TESSERA_DEVICE float query_factor(const float* scale, int32_t element) {
  return scale == nullptr ? 1.0f : KeyFrame::inverse(scale[element]);
}

// Rotates `heads` heads of a row in place and divides them by `scale`, by all threads of the block.
// A thread loads several pairs before it stores the first, because the compiler cannot tell that
// they are different.
TESSERA_DEVICE void rotate_heads(float* row, int32_t heads, int32_t head_dim, const Angles& by,
                                 const float* scale = nullptr) {
  constexpr int32_t kPairs = 4;
  const int32_t count = heads * by.half;
  for (int32_t begin = simt::thread(); begin < count; begin += kPairs * simt::threads()) {
    HeadPair pairs[kPairs];
    TESSERA_UNROLL
    for (int32_t k = 0; k < kPairs; ++k) {
      const int32_t i = begin + k * simt::threads();
      if (i < count) {
        const float* first = row + i / by.half * head_dim + i % by.half;
        // A pair has one scale, a power of two: products with it are exact.
        const float factor = query_factor(scale, i % by.half);
        pairs[k] = rotated({first[0], first[by.half]}, by.cos[i % by.half] * factor,
                           by.sin[i % by.half] * factor);
      }
    }
    TESSERA_UNROLL
    for (int32_t k = 0; k < kPairs; ++k) {
      const int32_t i = begin + k * simt::threads();
      if (i < count) {
        float* first = row + i / by.half * head_dim + i % by.half;
        first[0] = pairs[k].first;
        first[by.half] = pairs[k].second;
      }
    }
  }
  const int32_t rest = scale == nullptr ? 0 : head_dim - 2 * by.half;  // elements without rotation
  TESSERA_UNROLL_BY(1)
  for (int32_t i = simt::thread(); i < heads * rest; i += simt::threads()) {
    const int32_t element = 2 * by.half + i % rest;
    row[i / rest * head_dim + element] *= query_factor(scale, element);
  }
}

}  // namespace tessera::cuda
