#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/pages/key_sketch.h"
#include "kernels/cpu/simd/limits.h"
#include "kernels/cpu/tiles/sketch_sums.h"
#include "kernels/kv/rotation.h"

namespace tessera {

// Queries of one KV head, to be multiplied by the key sketches of pages (kernels/kv/key_sketch.h).
class SketchQueries {
 public:
  static constexpr int32_t kMaxHeads = SketchStep::kMaxHeads;

  // queries: [heads, head_dim]. scale: of products, as in attention.
  // Requires: 0 < heads <= kMaxHeads; has_sketches(head_dim).
  SketchQueries(const float* queries, int32_t heads, int32_t head_dim, float scale)
      : heads_(heads), head_dim_(head_dim) {
    for (int32_t head = 0; head < heads; ++head) {
      float query[kMaxHeadDim];
      float largest = 0;
      for (int32_t c = 0; c < head_dim; ++c) {
        query[c] = queries[int64_t{head} * head_dim + c] * scale;
      }
      rotate(query, head_dim);
      for (int32_t c = 0; c < head_dim; ++c) {
        largest = std::max(largest, std::abs(query[c]));
        // A query with NaN or an infinity has no largest product. All pages are the same to it, and
        // to a query so small that a step would be 0 or lose digits.
        largest = std::isfinite(query[c]) ? largest : HUGE_VALF;
      }
      const bool usable = std::isfinite(largest) && largest >= kLeast;
      add_factors(head, query, usable ? largest : 0);
      add_table(head, query, usable);
    }
  }

  int32_t heads() const { return heads_; }

  // Estimates, for each head, the logarithm of the sum of the exponentials of the products with the
  // keys of blocks [first, end) of a page's sketch: that of the tokens within kNear of the largest
  // product, whose exponentials a triangle replaces. estimates: [kMaxHeads], of which those of no
  // head mean nothing. Loops are over kMaxHeads so that the compiler makes vectors.
  // Requires: end - first <= SketchStep::kMaxBlocks.
  void estimate(const KvPageLayout& layout, const std::byte* page, int32_t first, int32_t end,
                SketchKernel add, float* estimates) const {
    const KeySketchLayout parts{head_dim_, layout.capacity};
    const std::byte* const sketch = key_sketch(layout, page);
    const auto* const bytes = reinterpret_cast<const uint8_t*>(sketch);
    const KeySketchSteps steps = key_sketch_steps(sketch);
    const float products_of_scale = 1 / steps.scales;
    float units[kMaxHeads];
    int16_t widths[kMaxHeads];
    for (int32_t head = 0; head < kMaxHeads; ++head) {
      units[head] = product_units_[head] * steps.scales;
      const float width = near_products_[head] * products_of_scale;
      const float bounded = width < kMaxWidth ? width : kMaxWidth;
      widths[head] = static_cast<int16_t>(bounded > 1 ? bounded : 1);
    }
    SketchSums sums;
    add({.mean = bytes,
         .codes = bytes + parts.codes_offset() + first * parts.block_bytes(),
         .scales = bytes + parts.scales_offset() + int64_t{first} * kSketchTokens,
         .blocks = end - first,
         .head_dim = head_dim_,
         .factors = factors_,
         .tables = tables_,
         .widths = widths},
        heads_, sums);
    for (int32_t head = 0; head < kMaxHeads; ++head) {
      const int32_t mean = sums.mean[head] - factor_sums_[head];
      const int32_t near = sums.near[head] > widths[head] ? sums.near[head] : widths[head];
      estimates[head] = factor_steps_[head] * steps.mean * static_cast<float>(mean) +
                        units[head] * static_cast<float>(sums.largest[head]) +
                        log_of(near, widths[head]);
    }
  }

 private:
  static constexpr float kNear = 2;  // the triangle has the area of the exponential
  static constexpr float kProductUnits = 256;
  static constexpr float kMaxWidth = SketchStep::kMaxWidth;
  // 255 times the magnitudes of the factors of one sign fit into 31 bits.
  static constexpr float kLargestFactor = 30000;
  static constexpr float kLeast = 1e-20f;

  // Returns: ln(a / b), linear between powers of 2: at most 0.06 too small for each.
  static float log_of(int32_t a, int32_t b) {
    const auto bits = [](int32_t x) { return std::bit_cast<int32_t>(static_cast<float>(x)); };
    constexpr float kLn2PerBit = 0.693147181f / (1 << 23);
    return kLn2PerBit * static_cast<float>(bits(a) - bits(b));
  }

  void add_factors(int32_t head, const float* query, float largest) {
    factor_steps_[head] = largest / kLargestFactor;
    factor_sums_[head] = 0;
    for (int32_t c = 0; c < head_dim_; ++c) {
      const auto factor =
          static_cast<int16_t>(largest > 0 ? std::lrint(query[c] * (kLargestFactor / largest)) : 0);
      factors_[int64_t{head} * SketchStep::padded(head_dim_) + c] = factor;
      factor_sums_[head] += kSketchZero * int32_t{factor};
    }
  }

  void add_table(int32_t head, const float* query, bool usable) {
    float largest = 0;
    for (int32_t c = 0; c < head_dim_ && usable; c += 2) {
      largest = std::max(largest, std::abs(query[c]) + std::abs(query[c + 1]));
    }
    constexpr float kHighest = kSketchLevel[kSketchLevels - 1];
    constexpr float kZero = SketchStep::kTableZero;
    const float step = largest * kHighest / kZero;
    product_units_[head] = step * kProductUnits;
    near_products_[head] = kNear / product_units_[head];
    const float places = 1 / step;  // of a product of 1
    uint8_t* entry = tables_ + int64_t{head} * head_dim_ / 2 * 16;
    for (int32_t c = 0; c < head_dim_; c += 2) {
      for (int32_t codes = 0; codes < 16; ++codes) {
        const float product =
            kSketchLevel[codes % 4] * query[c] + kSketchLevel[codes / 4] * query[c + 1];
        // Rounded to nearest: places are at most kTableZero.
        *entry++ = static_cast<uint8_t>(usable ? product * places + (kZero + 0.5f) : kZero);
      }
    }
  }

  const int32_t heads_;
  const int32_t head_dim_;
  float factor_steps_[kMaxHeads] = {};
  int32_t factor_sums_[kMaxHeads] = {};  // products of the factors with kSketchZero
  float product_units_[kMaxHeads] = {};  // of a product, with a scale of 1
  float near_products_[kMaxHeads] = {};  // products in kNear, with a scale of 1; infinite if of 0
  int16_t factors_[kMaxHeads * kMaxHeadDim] = {};
  alignas(32) uint8_t tables_[kMaxHeads * kMaxHeadDim / 2 * 16];
};

}  // namespace tessera
