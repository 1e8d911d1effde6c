#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/cpu/pages/key_bounds.h"
#include "kernels/cpu/simd/limits.h"

namespace tessera {

// As BoundDots::multiply (kernels/cpu/tiles/bound_dots.h).
using BoundDotsOp = void (*)(const uint8_t* codes, const int16_t* factors, int32_t count,
                             int32_t heads, int32_t* dots);

// Queries of one KV head, to be multiplied by the key bounds of pages (kernels/kv/key_bounds.h).
// They are factors of the codes of upper bounds where a channel is positive, and of lower bounds
// where it is negative. They are rounded up, so that products with codes, which are not negative,
// only grow.
class BoundQueries {
 public:
  static constexpr int32_t kHeads = 8;

  explicit BoundQueries(int32_t head_dim) : head_dim_(head_dim) {}

  // Replaces all queries. query: [heads, head_dim]. Requires: heads <= kHeads.
  void load(const float* query, int32_t heads) {
    heads_ = heads;
    for (int32_t head = 0; head < heads; ++head, query += head_dim_) {
      load_head(head, query);
    }
  }

  // Returns: the largest product that a query has with a key of the page, or more. Float rounding
  // aside, it is never less. `bounds` are those of the page.
  float bound(const std::byte* bounds, BoundDotsOp multiply) const {
    const BoundScale scale = bound_scale(bounds);
    int32_t dots[kHeads];
    multiply(reinterpret_cast<const uint8_t*>(bounds), factors_, 2 * head_dim_, heads_, dots);
    float largest = std::numeric_limits<float>::lowest();
    for (int32_t head = 0; head < heads_; ++head) {
      largest = std::max(largest, scale.zero * sums_[head] +
                                      scale.step * steps_[head] * static_cast<float>(dots[head]));
    }
    return largest;
  }

 private:
  // 255 times the magnitudes of a head's factors fit into 31 bits.
  static constexpr float kLargestFactor = 32000;

  void load_head(int32_t head, const float* query) {
    float largest = 0;
    float sum = 0;
    for (int32_t c = 0; c < head_dim_; ++c) {
      largest = std::max(largest, std::abs(query[c]));
      sum += query[c];
    }
    // A query with NaN or an infinity has no largest product. All pages are the same to it.
    const bool usable = std::isfinite(sum) && largest > 0;
    steps_[head] = usable ? largest / kLargestFactor : 0;
    sums_[head] = usable ? sum : 0;
    int16_t* const row = factors_ + int64_t{head} * 2 * head_dim_;
    for (int32_t c = 0; c < head_dim_; ++c) {
      const auto factor = static_cast<int16_t>(usable ? std::ceil(query[c] / steps_[head]) : 0.0f);
      row[c] = std::max(factor, int16_t{0});
      row[head_dim_ + c] = std::min(factor, int16_t{0});
    }
  }

  const int32_t head_dim_;
  int32_t heads_ = 0;
  int16_t factors_[kHeads * 2 * kMaxHeadDim];  // [heads, 2 * head_dim]
  float steps_[kHeads];
  float sums_[kHeads];
};

}  // namespace tessera
