#pragma once

#include "kernels/cuda/attention/code_products.h"
#include "kernels/cuda/attention/float_products.h"
#include "kernels/cuda/attention/sparse_products.h"

namespace tessera::cuda {

inline constexpr float kLog2E = 1.44269504088896341f;

// Returns: token of the tile that a lane's score `index` (of 8) belongs to. `codes`: is_codes() of
// the tile's format.
TESSERA_DEVICE int32_t token_of_score(bool codes, int32_t index) {
  const int32_t g = simt::lane() / 4;
  return codes ? 32 * (index / 4) + 4 * g + index % 4 : 8 * g + index;
}

// Computes the scores of a tile of any format for the pairs that load_queries() put into the warp's
// memory: scores[product][index], for the lane's pair.
// Requires: the same `scale` as in load_queries(). Only tiles of f32 use `pairs`, `scale` and
// query(pair).
template <int kDim, int kProducts, class QueryAt>
TESSERA_DEVICE void tile_scores(AnyWarpMemory<kDim, kProducts>& memory, const Tile& tile,
                                int32_t pairs, float scale, QueryAt&& query,
                                float (&scores)[kProducts][8]) {
  if (tile.layout.format.is_sparse()) {
    SparseParts<kDim> keys(sparse_keys(tile.layout), tile,
                           warp_parts<AnyWarpMemory<kDim, kProducts>, AnyPart<kDim>>());
    return sparse_scores(memory, tile, keys, scores);
  }
  switch (tile.layout.format.key_bits) {
    case 8:
      return code_scores<8>(memory, tile, scores);
    case 4:
      return code_scores<4>(memory, tile, scores);
    case 2:
      return code_scores<2>(memory, tile, scores);
    case 16:
      return half_scores(
          memory, tile,
          [&](int32_t product, int32_t chunk) { return memory.halves.fragment(product, chunk); },
          scores);
    default:
      return float_scores(memory, tile, pairs, scale, query, scores);
  }
}

}  // namespace tessera::cuda
