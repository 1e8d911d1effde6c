#include "kernels/cpu/attention/rotated_pairs.h"

#include <algorithm>
#include <numeric>

namespace tessera {

void load_query_codes(const AttentionKernels& kernels, PairBlock& block, bool rotated,
                      float factor) {
  alignas(64) float query[kMaxHeadDim];
  for (int32_t pair = 0; pair < block.pairs; ++pair) {
    const float* row = block.query_rows[pair];
    if (rotated) {
      std::copy_n(row, block.head_dim, query);
      kernels.rotate(query, block.head_dim);
      row = query;
    }
    kernels.load_query_codes(block, pair, row, factor);
  }
  block.rotated_codes = rotated;
}

void turn_values(const AttentionKernels& kernels, PairBlock& block, bool rotated) {
  if (block.rotated_values == rotated) {
    return;
  }
  for (int32_t pair = 0; pair < block.pairs; ++pair) {
    if (block.maxima[pair] == PairBlock::kLowest) {
      continue;  // no token yet: all sums are 0
    }
    float* values = block.values + int64_t{pair} * block.head_dim;
    float* zeros = block.zeros + int64_t{pair} * KvPageLayout::kKeyTile;
    const float zero = std::accumulate(zeros, zeros + KvPageLayout::kKeyTile, 0.0f);
    std::fill_n(zeros, KvPageLayout::kKeyTile, 0.0f);
    for (int32_t channel = 0; channel < block.head_dim; ++channel) {
      values[channel] += zero;
    }
    kernels.rotate(values, block.head_dim);
  }
  block.rotated_values = rotated;
}

}  // namespace tessera
