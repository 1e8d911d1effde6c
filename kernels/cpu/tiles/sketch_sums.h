#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/simd/limits.h"
#include "kernels/kv/key_sketch.h"

namespace tessera {

// Sums of table entries of each query head. Integers, so that every instruction set has the same
// results.
struct SketchSums {
  static constexpr int32_t kMaxHeads = 8;

  int32_t largest[kMaxHeads] = {};  // of the products of the tokens, at least 0
  int32_t near[kMaxHeads] = {};     // sum over the tokens of max(0, width - (largest - product))
};

// Codes of consecutive blocks of a page's sketch (kernels/kv/key_sketch.h), and the tables by which
// queries are multiplied with them. Pointers are not owned.
struct SketchStep {
  // Most blocks that overlap an attention tile: a page may begin in the middle of one.
  static constexpr int32_t kMaxBlocks = kAttentionTile / kSketchTokens + 1;
  // The entry of two channels whose products with their levels add up to 0. Entries are from 0 to
  // twice this, so that four add up to less than 256.
  static constexpr int32_t kTableZero = 31;

  const uint8_t* codes;   // [blocks, head_dim / 2, 16]
  const uint8_t* scales;  // [blocks, kSketchTokens]
  int32_t blocks;         // at most kMaxBlocks
  int32_t head_dim;
  const uint8_t* tables;  // [heads, head_dim / 2, 16]: entries of the two codes of a half byte
  const int32_t* widths;  // [heads], 1 to 32767
};

// Kernels of one instruction set.
struct SketchKernels {
  // Writes the products of a mean's bytes with factors of each head.
  // bytes: [count]; factors: [heads, count]; products: [heads].
  // Requires: the magnitudes of a head's factors, times 255, add up to less than 2^31 for each
  // sign; count is a multiple of 8.
  void (*multiply)(const uint8_t* bytes, const int16_t* factors, int32_t count, int32_t heads,
                   int32_t* products);
  // Writes the sums of each head. A token's product is its scale times the sum of its entries, each
  // less kTableZero, divided by 256 and rounded to nearest, half up.
  void (*add)(const SketchStep& step, int32_t heads, SketchSums& sums);
};

struct ScalarSketch {
  static void multiply(const uint8_t* bytes, const int16_t* factors, int32_t count, int32_t heads,
                       int32_t* products) {
    for (int32_t head = 0; head < heads; ++head, factors += count) {
      products[head] = 0;
      for (int32_t i = 0; i < count; ++i) {
        products[head] += int32_t{bytes[i]} * int32_t{factors[i]};
      }
    }
  }

  static void add(const SketchStep& step, int32_t heads, SketchSums& sums) {
    for (int32_t head = 0; head < heads; ++head) {
      const uint8_t* const table = step.tables + int64_t{head} * step.head_dim / 2 * 16;
      int32_t products[SketchStep::kMaxBlocks * kSketchTokens];
      const int32_t tokens = step.blocks * kSketchTokens;
      for (int32_t token = 0; token < tokens; ++token) {
        products[token] = product(step, token, table);
      }
      const int32_t largest = std::max(0, *std::max_element(products, products + tokens));
      sums.largest[head] = largest;
      sums.near[head] = 0;
      for (int32_t token = 0; token < tokens; ++token) {
        sums.near[head] += std::max(0, step.widths[head] - (largest - products[token]));
      }
    }
  }

 private:
  static int32_t product(const SketchStep& step, int32_t token, const uint8_t* table) {
    const int32_t pairs = step.head_dim / 2;
    const uint8_t* const column =
        step.codes + int64_t{token} / kSketchTokens * pairs * 16 + token % 16;
    const int32_t shift = token % kSketchTokens / 16 * 4;
    int32_t sum = 0;
    for (int32_t pair = 0; pair < pairs; ++pair) {
      sum += table[pair * 16 + (column[pair * 16] >> shift & 15)] - SketchStep::kTableZero;
    }
    return (sum * step.scales[token] + 128) >> 8;
  }
};

inline constexpr SketchKernels kScalarSketch{ScalarSketch::multiply, ScalarSketch::add};

}  // namespace tessera
