#pragma once

#include <cstdint>

#include "kernels/kv/allocators/reads.h"
#include "kernels/kv/rounded.h"

namespace tessera {

// PyramidKV: the budget falls linearly over the layers, from 2 mean - last in the first layer to
// last = mean / pyramid_steepness. The first layer gets at most all tokens. The paper takes both
// ends of the slope from an offline profile.
struct PyramidAllocator {
  static constexpr AllocatorReads kReads = AllocatorReads::shape;
  template <class Shape>
  static constexpr double budget(const Shape& shape, const AllocatorRow& row) {
    const double mean = shape.row_budget;
    const double highest = 2 * mean - mean / double{shape.policy.pyramid_steepness};
    const double first = highest < shape.tokens ? highest : shape.tokens;
    const double last = 2 * mean - first;
    const double depth =
        shape.layers > 1 ? static_cast<double>(row.layer) / (shape.layers - 1) : 0.5;
    return first + rounded_product(depth, last - first);
  }
};

}  // namespace tessera
