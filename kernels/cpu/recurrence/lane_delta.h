#pragma once

#include <cstdint>

#include "kernels/cpu/recurrence/delta_step.h"
#include "kernels/cpu/rows/lane_rows.h"

namespace tessera {

// The step over a vector type V, some columns of the state at once. Columns behind the last whole
// vector go through a padded copy, so that the arithmetic of a column does not depend on its place.
template <class V>
struct LaneDelta {
  static constexpr int64_t kLanes = V::kLanes;
  static constexpr int64_t kVectors = 4;  // hide the latency of the sums

  // lanes: those of each vector that are columns; all of them if the vectors are whole
  template <int64_t kCount, bool kWhole>
  static void take_columns(const DeltaStep& step, int64_t col, int64_t lanes) {
    const auto load = [&](const float* p) {
      if constexpr (kWhole) return V::load(p);
      return LaneRows<V>::load_first(p, lanes);
    };
    const auto store = [&](V x, float* p) {
      if constexpr (kWhole) {
        x.store(p);
      } else {
        LaneRows<V>::store_first(x, p, lanes);
      }
    };
    V added[kCount];
    for (V& sum : added) sum = V::zero();
    const V decay = V::all(step.decay);
    for (int64_t i = 0; i < step.key_dim; ++i) {
      const V key = V::all(step.key[i] * step.key_factor);
      float* row = step.state + i * step.value_dim + col;
      for (int64_t j = 0; j < kCount; ++j) {
        const V element = load(row + j * kLanes) * decay;
        store(element, row + j * kLanes);
        added[j] = V::fma(key, element, added[j]);
      }
    }
    V read[kCount];
    for (int64_t j = 0; j < kCount; ++j) {
      added[j] = V::all(step.rate) * (load(step.value + col + j * kLanes) - added[j]);
      read[j] = V::zero();
    }
    for (int64_t i = 0; i < step.key_dim; ++i) {
      const V key = V::all(step.key[i] * step.key_factor);
      const V query = V::all(step.query[i] * step.query_factor);
      float* row = step.state + i * step.value_dim + col;
      for (int64_t j = 0; j < kCount; ++j) {
        const V element = V::fma(key, added[j], load(row + j * kLanes));
        store(element, row + j * kLanes);
        read[j] = V::fma(query, element, read[j]);
      }
    }
    for (int64_t j = 0; j < kCount; ++j) store(read[j], step.out + col + j * kLanes);
  }

  static void take_step(const DeltaStep& step) {
    int64_t col = 0;
    for (; col + kVectors * kLanes <= step.value_dim; col += kVectors * kLanes) {
      take_columns<kVectors, true>(step, col, kLanes);
    }
    for (; col + kLanes <= step.value_dim; col += kLanes) {
      take_columns<1, true>(step, col, kLanes);
    }
    if (col < step.value_dim) take_columns<1, false>(step, col, step.value_dim - col);
  }
};

}  // namespace tessera
