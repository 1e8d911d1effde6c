#pragma once

#include <cstdint>

#include "kernels/kv/allocators/reads.h"

namespace tessera {

// The same budget for every row (H2O, SnapKV).
struct UniformAllocator {
  static constexpr AllocatorReads kReads = AllocatorReads::shape;
  template <class Shape>
  static constexpr double budget(const Shape& shape, const AllocatorRow& /*row*/) {
    return shape.row_budget;
  }
};

}  // namespace tessera
