#pragma once

#include <cstdint>

#include "kernels/backend.h"

namespace tessera {

// How attention multiplies a sparse tile's numbers as f16, and adds the products up as f16, where
// the hardware does (sparse_halves_avx512.h). Every operation then rounds to 11 bits: by 2^-11 of
// its result, or by 2^-25 where that is more. Numbers are scaled so that nothing overflows,
// whatever finite f16 they meet, and as little as may be underflows.
//
// A query's largest magnitude becomes this: a sum of head_dim products stays below 2^15.
constexpr float half_query_range(int32_t head_dim) {
  return 0.5f / static_cast<float>(head_dim);
}
// A tile's largest weight becomes this: a sum of kAttentionTile weighted values stays below 2^15. A
// tile's values are added up as f16, tiles as f32.
inline constexpr float kHalfWeightRange = 0.5f / kAttentionTile;

}  // namespace tessera
