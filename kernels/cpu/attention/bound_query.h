#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/pages/key_bounds.h"
#include "kernels/cpu/simd/limits.h"

namespace tessera {

// As BoundDots::multiply (kernels/cpu/tiles/bound_dots.h).
using BoundDotOp = int32_t (*)(const uint8_t* codes, const int16_t* factors, int32_t count);

// The queries of one KV head, to be multiplied by the key bounds of pages
// (kernels/kv/key_bounds.h). The sum of their positive channels is a factor of the codes of upper
// bounds, that of their negative ones of lower bounds. Factors are rounded up, so that products
// with codes, which are not negative, only grow.
class BoundQuery {
 public:
  // queries: [heads, head_dim].
  BoundQuery(const float* queries, int32_t heads, int32_t head_dim) : head_dim_(head_dim) {
    float sums[2 * kMaxHeadDim] = {};
    for (int32_t head = 0; head < heads; ++head, queries += head_dim) {
      for (int32_t c = 0; c < head_dim; ++c) {
        sums[c] += std::max(queries[c], 0.0f);
        sums[head_dim + c] += std::min(queries[c], 0.0f);
        sum_ += queries[c];
      }
    }
    float largest = 0;
    for (int32_t i = 0; i < 2 * head_dim; ++i) {
      largest = std::max(largest, std::abs(sums[i]));
    }
    // Queries with NaN or an infinity have no largest product. All pages are the same to them, and
    // to queries so small that a factor's step would be 0 or lose digits.
    const bool usable = std::isfinite(sum_) && std::isfinite(largest) && largest >= kLeastSum;
    step_ = usable ? largest / kLargestFactor : 0;
    sum_ = usable ? sum_ : 0;
    for (int32_t i = 0; i < 2 * head_dim; ++i) {
      factors_[i] = static_cast<int16_t>(usable ? std::ceil(sums[i] / step_) : 0.0f);
    }
  }

  // Returns: the sum over the queries of the largest product that each has with a key of the page,
  // or more. Float rounding aside, it is never less. `bounds` are those of the page.
  float bound(const std::byte* bounds, BoundDotOp multiply) const {
    const BoundScale scale = bound_scale(bounds);
    const int32_t dot = multiply(reinterpret_cast<const uint8_t*>(bounds), factors_, 2 * head_dim_);
    return scale.zero * sum_ + scale.step * step_ * static_cast<float>(dot);
  }

 private:
  // 255 times the magnitudes of the factors of one sign fit into 31 bits.
  static constexpr float kLargestFactor = 32000;
  static constexpr float kLeastSum = 1e-30f;

  const int32_t head_dim_;
  int16_t factors_[2 * kMaxHeadDim];
  float step_ = 0;
  float sum_ = 0;
};

}  // namespace tessera
