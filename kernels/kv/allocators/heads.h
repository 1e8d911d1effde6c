#pragma once

#include <cstdint>

#include "kernels/kv/allocators/reads.h"
#include "kernels/kv/rounded.h"
#include "kernels/kv/row_function.h"

namespace tessera {

// Ada-KV: the tokens with the highest scores over all heads of a layer share the layer's budget. A
// head's budget is head_floor of the uniform budget plus 1 - head_floor of its protected and
// winning tokens.
struct HeadsAllocator {
  static constexpr AllocatorReads kReads = AllocatorReads::scores;
  template <class Layer>
  TESSERA_ROW_FUNCTION void measure(const Layer& layer) {
    int32_t best = layer.heads() * layer.row_budget();
    for (int32_t head = 0; head < layer.heads(); ++head) {
      best -= layer.stored(head) - layer.own(head);  // kept anyway
    }
    const auto cut = layer.cut_best(best);
    for (int32_t head = 0; head < layer.heads(); ++head) {
      layer.set(head, layer.stored(head) - layer.own(head) + layer.own_at_least(head, cut));
    }
  }
  template <class Shape>
  static constexpr double budget(const Shape& shape, const AllocatorRow& row) {
    const double floor = shape.policy.head_floor;
    return rounded_product(floor, shape.row_budget) + rounded_product(1 - floor, row.measure);
  }
};

}  // namespace tessera
