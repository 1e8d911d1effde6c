#pragma once

#include "kernels/cuda/attention/code_products.h"
#include "kernels/cuda/attention/float_products.h"
#include "kernels/cuda/attention/sparse_products.h"

namespace tessera::cuda {

inline constexpr float kLog2E = 1.44269504088896341f;

// Which token of a tile a lane's score `index` (of 8) is of.
TESSERA_DEVICE int32_t token_of_score(bool codes, int32_t index) {
  const int32_t g = simt::lane() / 4;
  return codes ? 32 * (index / 4) + 4 * g + index % 4 : 8 * g + index;
}

// The scores of a tile of any format for the pairs that load_queries() put into the warp's
// memory, scaled by `scale` as those were: scores[product][index], of the lane's pair. `pairs` and
// query(pair) are for tiles of f32.
template <int kDim, int kProducts, class QueryAt>
TESSERA_DEVICE void tile_scores(WarpMemory<kDim, kProducts>& memory,
                                const Queries<kProducts>& queries, const Tile& tile, int32_t pairs,
                                float scale, QueryAt&& query, float (&scores)[kProducts][8]) {
  if (tile.layout->format.is_sparse()) {
    return sparse_scores(memory, tile, scores);
  }
  switch (tile.layout->format.key_bits) {
    case 8:
      return code_scores<8>(memory, queries, tile, scores);
    case 4:
      return code_scores<4>(memory, queries, tile, scores);
    case 2:
      return code_scores<2>(memory, queries, tile, scores);
    case 16:
      return half_scores(memory, tile, scores);
    default:
      return float_scores(memory, tile, pairs, scale, query, scores);
  }
}

}  // namespace tessera::cuda
