#pragma once

#include <cstdint>

#include "kernels/kv/allocators/reads.h"
#include "kernels/kv/rounded.h"
#include "kernels/kv/row_function.h"

namespace tessera {

// ZigZagKV (Zhong et al., COLING 2025, section 4): a layer that needs more tokens to keep 90 % of
// its attention gets more of the budget, and each head its part of that. The minimum budget of a
// head is the number of its best tokens with that share. A layer's minimum is the mean of its
// heads. So a head's part of the layer's part is its own minimum over the sum of all.
//
// Every row gets head_floor of the uniform budget first, as every layer of the paper gets a minimum
// size. The paper measures with the attention of the last queries before pooling; here pooled
// scores count, as in the selection of tokens.
struct ZigzagAllocator {
  static constexpr AllocatorReads kReads = AllocatorReads::scores;
  static constexpr double kShare = 0.9;
  template <class Layer>
  TESSERA_ROW_FUNCTION void measure(const Layer& layer) {
    for (int32_t head = 0; head < layer.heads(); ++head) {
      const auto cut = layer.cut_mass(head, rounded_product(1 - kShare, layer.mass(head)));
      layer.set(head, layer.stored(head) - layer.own(head) + layer.own_at_least(head, cut));
    }
  }
  template <class Shape>
  static constexpr double budget(const Shape& shape, const AllocatorRow& row) {
    const double floor = rounded_product(double{shape.policy.head_floor}, shape.row_budget);
    const double shared = rounded_product(shape.row_budget - floor, shape.layers * shape.heads);
    return floor + (row.sum > 0 ? rounded_product(shared, row.measure) / row.sum : 0.0);
  }
};

}  // namespace tessera
