#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/kv/codebook.h"

namespace tessera {

// Encoding with a codebook. The scale of least squared error has no closed form. An iteration as in
// k-means finds it: codes for a scale, then the scale of least squared error for these codes. The
// first scale is that of a normal distribution.
//
// Every instruction set compiles this with its own flags, under a type `Isa` of its own and without
// contraction of a * b + c. Sums have 8 lanes: lane j adds channels j, j + 8, ..., and the lanes
// are added in a fixed order. All instruction sets therefore get the same bits.
template <class Isa>
struct CodebookCodes {
  // Returns: the scale, before it is rounded to f16. 0 if all channels are 0.
  // Requires: channels: [head_dim], finite.
  static float scale(const float* channels, int32_t head_dim) {
    const float squares = sum(channels, head_dim, [](float x) { return x * x; });
    float scale = kNormalScale * std::sqrt(squares / static_cast<float>(head_dim));
    for (int32_t i = 0; i < kRefits; ++i) {
      const Limits limits(scale);
      const float products =
          sum(channels, head_dim, [&](float x) { return x * limits.number_of(x); });
      const float energy = sum(channels, head_dim, [&](float x) {
        const float number = limits.number_of(x);
        return number * number;
      });
      scale = std::max(products, 0.0f) / energy;
    }
    return scale;
  }

  // Writes the code of the nearest number of each channel, the lower of two.
  // Requires: codes: [head_dim].
  static void encode(const float* channels, int32_t head_dim, float scale, uint8_t* codes) {
    const Limits limits(scale);
    for (int32_t c = 0; c < head_dim; ++c) {
      codes[c] = limits.code_of(channels[c]);
    }
  }

 private:
  static constexpr int32_t kLanes = 8;
  static constexpr int32_t kRefits = 2;
  // Scale of least squared error for a unit normal.
  static constexpr float kNormalScale = 0.017f;

  // Upper limits of the codes, times the scale.
  struct Limits {
    explicit Limits(float scale) {
      for (int32_t i = 1; i < kCodebookSize; ++i) {
        of[i] = codebook_limit(i) * scale;
      }
    }
    float number_of(float x) const {
      float number = static_cast<float>(kCodebookNumbers[0]);
      for (int32_t i = 1; i < kCodebookSize; ++i) {
        const auto gap = static_cast<float>(kCodebookNumbers[i] - kCodebookNumbers[i - 1]);
        number += x > of[i] ? gap : 0.0f;
      }
      return number;
    }
    uint8_t code_of(float x) const {
      int32_t code = 0;
      for (int32_t i = 1; i < kCodebookSize; ++i) {
        code += x > of[i] ? 1 : 0;
      }
      return static_cast<uint8_t>(code);
    }
    float of[kCodebookSize] = {};
  };

  template <class Term>
  static float sum(const float* channels, int32_t head_dim, Term&& term) {
    float lanes[kLanes] = {};
    const int32_t whole = head_dim / kLanes * kLanes;
    for (int32_t c = 0; c < whole; c += kLanes) {
      for (int32_t lane = 0; lane < kLanes; ++lane) {
        lanes[lane] += term(channels[c + lane]);
      }
    }
    for (int32_t c = whole; c < head_dim; ++c) {
      lanes[c - whole] += term(channels[c]);
    }
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
           ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
  }
};

}  // namespace tessera
