#pragma once

#include "kernels/cuda/attention/row_formats.h"
#include "kernels/cuda/attention/sparse_parts.h"
#include "kernels/cuda/attention/staged_codes.h"
#include "kernels/cuda/attention/staged_halves.h"

namespace tessera::cuda {

// Memory of a warp in a kernel for Rows. Kernels of one format read tiles of f16, and pages of
// codes, through stages: pieces of the next tiles are copied while the warp computes.
template <int kDim, int kProducts, class Rows, bool kHalves, bool kCodes>
struct MemoryOf {  // sparse rows
  using Type = HalfWarpMemory<kDim, kProducts>;
};
template <int kDim, int kProducts>
struct MemoryOf<kDim, kProducts, AnyRows, false, true> {
  using Type = AnyWarpMemory<kDim, kProducts>;
};
template <int kDim, int kProducts, class Rows>
struct MemoryOf<kDim, kProducts, Rows, true, false> {
  struct Type : WarpMemory<kDim, kProducts> {
    HalfStages<kDim> stages;
  };
};
template <int kDim, int kProducts, class Rows>
struct MemoryOf<kDim, kProducts, Rows, false, true> {
  struct Type : WarpMemory<kDim, kProducts> {
    CodeQueries<kDim, kProducts> codes;
    CodeStages<kDim, Rows::kFormat.key_bits, Rows::kFormat.value_bits> stages;
  };
};
template <int kDim, int kProducts, class Rows>
using MemoryOfRows =
    typename MemoryOf<kDim, kProducts, Rows, has_halves<Rows>(), has_codes<Rows>()>::Type;

}  // namespace tessera::cuda
