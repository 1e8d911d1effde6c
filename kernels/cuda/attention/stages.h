#pragma once

#include <type_traits>

#include "kernels/cuda/attention/row_formats.h"
#include "kernels/cuda/attention/sparse_parts.h"
#include "kernels/cuda/attention/staged_codes.h"
#include "kernels/cuda/attention/staged_halves.h"

namespace tessera::cuda {

// Kernels for pages of f16, or of codes, read them through stages: pieces of the next tiles are
// copied while the warp computes. With f16 that includes the residual buffer.
template <int kDim, int kProducts>
struct StagedHalfMemory : WarpMemory<kDim, kProducts> {
  HalfStages<kDim> stages;
};
template <int kDim, int kProducts, class Rows>
struct StagedCodeMemory : WarpMemory<kDim, kProducts> {
  CodeQueries<kDim, kProducts> codes;
  CodeStages<kDim, Rows::kFormat.key_bits, Rows::kFormat.value_bits> stages;
};

template <int kDim, int kProducts, class Rows>
constexpr auto memory_of_rows() {
  if constexpr (!Rows::kOneFormat) {
    return std::type_identity<AnyWarpMemory<kDim, kProducts>>();
  } else if constexpr (has_halves<Rows>()) {
    return std::type_identity<StagedHalfMemory<kDim, kProducts>>();
  } else if constexpr (has_codes<Rows>()) {
    return std::type_identity<StagedCodeMemory<kDim, kProducts, Rows>>();
  } else {
    return std::type_identity<HalfWarpMemory<kDim, kProducts>>();
  }
}
// Shared memory of a warp in a kernel for Rows.
template <int kDim, int kProducts, class Rows>
using MemoryOfRows = typename decltype(memory_of_rows<kDim, kProducts, Rows>())::type;

}  // namespace tessera::cuda
