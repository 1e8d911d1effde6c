#pragma once

#include <cstdint>

#include "kernels/cpu/rows/row_ops.h"
#include "kernels/cpu/simd/exponential.h"
#include "kernels/matrix/half.h"

namespace tessera {

// Row ops over a vector type V; RowOps has their contracts. Counts need not be whole vectors. The
// rest goes through a padded copy, so that the arithmetic of an element does not depend on its
// place in the row.
template <class V>
struct LaneRows {
  static constexpr int64_t kLanes = V::kLanes;

  static V load_first(const float* p, int64_t count) {
    float padded[kLanes] = {};
    for (int64_t i = 0; i < count; ++i) {
      padded[i] = p[i];
    }
    return V::load(padded);
  }

  static void store_first(V x, float* p, int64_t count) {
    float padded[kLanes];
    x.store(padded);
    for (int64_t i = 0; i < count; ++i) {
      p[i] = padded[i];
    }
  }

  // Four running sums hide the latency of the additions. They are added in a fixed order.
  static float sum_of_squares(const float* in, int64_t count) {
    V sums[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
    int64_t i = 0;
    for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
      for (int64_t j = 0; j < 4; ++j) {
        const V x = V::load(in + i + j * kLanes);
        sums[j] = V::fma(x, x, sums[j]);
      }
    }
    for (; i + kLanes <= count; i += kLanes) {
      const V x = V::load(in + i);
      sums[0] = V::fma(x, x, sums[0]);
    }
    const V rest = load_first(in + i, count - i);
    sums[1] = V::fma(rest, rest, sums[1]);
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])).sum();
  }

  static void rms_norm(const NormRow& row, float* out) {
    const auto [in, weight, count, epsilon, scale, accumulate] = row;
    const float mean = sum_of_squares(in, count) / static_cast<float>(count);
    const V inverse = V::all(scale / __builtin_sqrtf(mean + epsilon));
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      const V norm = V::load(in + i) * inverse * V::load(weight + i);
      (accumulate ? V::load(out + i) + norm : norm).store(out + i);
    }
    const int64_t left = count - i;
    const V norm = load_first(in + i, left) * inverse * load_first(weight + i, left);
    store_first(accumulate ? load_first(out + i, left) + norm : norm, out + i, left);
  }

  static void rope(float* head, const float* cos, const float* sin, int64_t half) {
    for (int64_t i = 0; i < half; i += kLanes) {
      const int64_t count = half - i < kLanes ? half - i : kLanes;
      const bool whole = count == kLanes;
      const V c = whole ? V::load(cos + i) : load_first(cos + i, count);
      const V s = whole ? V::load(sin + i) : load_first(sin + i, count);
      const V x = whole ? V::load(head + i) : load_first(head + i, count);
      const V y = whole ? V::load(head + i + half) : load_first(head + i + half, count);
      const V turned_x = V::fma(x, c, V::zero() - y * s);
      const V turned_y = V::fma(y, c, x * s);
      if (whole) {
        turned_x.store(head + i);
        turned_y.store(head + i + half);
      } else {
        store_first(turned_x, head + i, count);
        store_first(turned_y, head + i + half, count);
      }
    }
  }

  static V silu_times(V gate, V up) {
    return gate / (V::all(1.0f) + exponential(V::zero() - gate)) * up;
  }

  static void silu_mul(const float* gate, const float* up, int64_t count, float* out) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      silu_times(V::load(gate + i), V::load(up + i)).store(out + i);
    }
    const int64_t left = count - i;
    store_first(silu_times(load_first(gate + i, left), load_first(up + i, left)), out + i, left);
  }
};

}  // namespace tessera
