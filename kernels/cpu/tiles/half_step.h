#pragma once

#include <cstdint>

#include "kernels/backend.h"

namespace tessera {

// Arithmetic of attention on sparse tiles if the hardware computes in f16 (sparse_halves_avx512.h).
// Products and sums are f16. Each operation rounds to 11 bits: the error is at most 2^-11 of its
// result, or 2^-25 if that is larger. Numbers are scaled so that nothing overflows for any finite
// f16, and underflow is as rare as possible.
//
// Returns: target for a query's largest magnitude. A sum of head_dim products stays below 2^15.
constexpr float half_query_range(int32_t head_dim) {
  return 0.5f / static_cast<float>(head_dim);
}
// Target for a tile's largest weight: a sum of kAttentionTile weighted values stays below 2^15.
// Values are summed as f16 inside a tile and as f32 over tiles.
inline constexpr float kHalfWeightRange = 0.5f / kAttentionTile;

}  // namespace tessera
