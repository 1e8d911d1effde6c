#pragma once

#include "kernels/cuda/simt/simt.h"

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

// Divides elements of a head by a frame's scale (KeyFrame); null: they stay.
TESSERA_DEVICE float divided(float x, const float* scale, int32_t element) {
  return scale == nullptr ? x : x / scale[element];
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
        pairs[k] = rotated({first[0], first[by.half]}, by.cos[i % by.half], by.sin[i % by.half]);
      }
    }
    TESSERA_UNROLL
    for (int32_t k = 0; k < kPairs; ++k) {
      const int32_t i = begin + k * simt::threads();
      if (i < count) {
        float* first = row + i / by.half * head_dim + i % by.half;
        first[0] = divided(pairs[k].first, scale, i % by.half);
        first[by.half] = divided(pairs[k].second, scale, i % by.half + by.half);
      }
    }
  }
  const int32_t rest = scale == nullptr ? 0 : head_dim - 2 * by.half;  // elements without rotation
  for (int32_t i = simt::thread(); i < heads * rest; i += simt::threads()) {
    const int32_t element = 2 * by.half + i % rest;
    float& x = row[i / rest * head_dim + element];
    x = divided(x, scale, element);
  }
}

}  // namespace tessera::cuda
