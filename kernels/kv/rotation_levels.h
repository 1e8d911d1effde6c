#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/kv/rotation.h"

namespace tessera {

// The transform of rotation.h. Every instruction set compiles it with its own flags, under a type
// `Isa` of its own. The counts of inner loops are constants, so that the compiler makes vectors of
// that instruction set; sums and differences are the same in all of them.
template <class Isa>
struct RotationLevels {
  static constexpr int32_t kMaxBlock = 256;

  static void rotate(float* channels, int32_t head_dim) {
    const int32_t block = rotation_block(head_dim);
    const float norm = 1.0f / std::sqrt(static_cast<float>(block));
    for (float* x = channels; x < channels + head_dim; x += block) {
      levels<kMaxBlock / 2>(x, block);
      if (block >= 4) {
        for (int32_t i = 0; i < block; i += 4) {
          finish_four(x + i, norm);
        }
      } else if (block == 2) {
        add_and_subtract(x[0], x[1]);
        x[0] *= norm;
        x[1] *= norm;
      }
    }
  }

 private:
  static void add_and_subtract(float& a, float& b) {
    const float sum = a + b;
    b = a - b;
    a = sum;
  }

  // The levels of channels kReach apart, and of fewer down to 4.
  template <int32_t kReach>
  static void levels(float* x, int32_t block) {
    if (block >= 2 * kReach) {
      for (float* first = x; first < x + block; first += 2 * kReach) {
        for (int32_t i = 0; i < kReach; ++i) {
          add_and_subtract(first[i], first[i + kReach]);
        }
      }
    }
    if constexpr (kReach > 4) {
      levels<kReach / 2>(x, block);
    }
  }

  // The last two levels, for 4 neighbouring channels.
  static void finish_four(float* x, float norm) {
    add_and_subtract(x[0], x[2]);
    add_and_subtract(x[1], x[3]);
    add_and_subtract(x[0], x[1]);
    add_and_subtract(x[2], x[3]);
    for (int32_t i = 0; i < 4; ++i) {
      x[i] *= norm;
    }
  }
};

}  // namespace tessera
