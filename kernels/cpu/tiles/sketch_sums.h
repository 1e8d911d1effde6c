#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/simd/limits.h"
#include "kernels/kv/key_sketch.h"

namespace tessera {

// A part of a page's sketch (kernels/kv/key_sketch.h), and the tables by which queries are
// multiplied with it. Pointers are not owned.
struct SketchStep {
  static constexpr int32_t kMaxHeads = 8;
  // Most blocks that overlap an attention tile: a page may begin in the middle of one.
  static constexpr int32_t kMaxBlocks = kAttentionTile / kSketchTokens + 1;
  // The entry of two channels whose products with their levels add up to 0. Entries are from 0 to
  // twice this, so that four add up to less than 256.
  static constexpr int32_t kTableZero = 31;
  // Largest width. One number for each of the 2 * kMaxBlocks tokens of a lane adds up to less than
  // 2^15: each is at most this, or a product of at most kMaxHeadDim / 2 * kTableZero.
  static constexpr int32_t kMaxWidth = 32767 / (2 * kMaxBlocks);
  static_assert(kMaxHeadDim / 2 * kTableZero <= kMaxWidth);

  // Returns: factors of one head, of which those behind head_dim are 0.
  static constexpr int32_t padded(int32_t head_dim) { return (head_dim + 15) / 16 * 16; }

  const uint8_t* mean;    // [padded(head_dim)]: bytes behind head_dim are read, and mean nothing
  const uint8_t* codes;   // [blocks, head_dim / 4, kSketchTokens]
  const uint8_t* scales;  // [blocks, kSketchTokens]
  int32_t blocks;         // at most kMaxBlocks
  int32_t head_dim;
  const int16_t* factors;  // [heads, padded(head_dim)]
  const uint8_t* tables;   // [heads, head_dim / 2, 16]: entries of the codes of two channels
  const int16_t* widths;   // [kMaxHeads], 1 to kMaxWidth
};

// Sums of each query head. Integers, so that every instruction set has the same results. A token's
// product is its scale times the sum of its entries, each less kTableZero, divided by 256 and
// rounded to nearest, half up.
struct SketchSums {
  int32_t mean[SketchStep::kMaxHeads];     // of the bytes of the mean times their factors
  int32_t largest[SketchStep::kMaxHeads];  // of the products of the tokens, at least 0
  int32_t near[SketchStep::kMaxHeads];     // of max(0, width - (largest - product))
};

// Writes the sums of `heads` heads; those of further heads mean nothing.
// Requires: 0 < heads <= kMaxHeads; the magnitudes of a head's factors, times 255, add up to less
// than 2^31 for each sign.
using SketchKernel = void (*)(const SketchStep& step, int32_t heads, SketchSums& sums);

struct ScalarSketch {
  static void add(const SketchStep& step, int32_t heads, SketchSums& sums) {
    sums = {};
    for (int32_t head = 0; head < heads; ++head) {
      const int16_t* const factors =
          step.factors + int64_t{head} * SketchStep::padded(step.head_dim);
      for (int32_t c = 0; c < step.head_dim; ++c) {
        sums.mean[head] += int32_t{step.mean[c]} * int32_t{factors[c]};
      }
      const uint8_t* const table = step.tables + int64_t{head} * step.head_dim / 2 * 16;
      int32_t products[SketchStep::kMaxBlocks * kSketchTokens];
      const int32_t tokens = step.blocks * kSketchTokens;
      for (int32_t token = 0; token < tokens; ++token) {
        products[token] = product(step, token, table);
      }
      const int32_t largest = std::max(0, *std::max_element(products, products + tokens));
      sums.largest[head] = largest;
      for (int32_t token = 0; token < tokens; ++token) {
        sums.near[head] += std::max(0, step.widths[head] - (largest - products[token]));
      }
    }
  }

 private:
  static int32_t product(const SketchStep& step, int32_t token, const uint8_t* table) {
    const int32_t rows = step.head_dim / 4;
    const uint8_t* const column =
        step.codes + int64_t{token} / kSketchTokens * rows * kSketchTokens + token % kSketchTokens;
    int32_t sum = 0;
    for (int32_t row = 0; row < rows; ++row, table += 32) {
      const uint8_t four = column[row * kSketchTokens];
      sum += table[four & 15] + table[16 + (four >> 4)] - 2 * SketchStep::kTableZero;
    }
    return (sum * step.scales[token] + 128) >> 8;
  }
};

}  // namespace tessera
