#pragma once

#include <cstdint>

#include "kernels/kv/allocators/reads.h"
#include "kernels/kv/rounded.h"

namespace tessera {

// CompressKV (arXiv 2508.02401): budgets in proportion to an error that was measured before any
// request. Here the error is a row's loss, in the paper that of a layer's output. Every row gets
// head_floor of the uniform budget first.
struct LossesAllocator {
  static constexpr AllocatorReads kReads = AllocatorReads::profile;
  template <class Shape>
  static constexpr double budget(const Shape& shape, const AllocatorRow& row) {
    const double floor = rounded_product(double{shape.policy.head_floor}, shape.row_budget);
    return floor + rounded_product(shape.row_budget - floor, double{row.profile.weight});
  }
};

}  // namespace tessera
