#pragma once

#include "kernels/cuda/attention/tile.h"
#include "kernels/cuda/attention/work.h"
#include "kernels/cuda/simt/block.h"
#include "kernels/kv/code_step.h"

namespace tessera::cuda {

// The tensor cores take the pairs of a warp's block four at a time. A product has 8 columns; pair i
// of four has column 2 i for its high part and column 2 i + 1 for its low part. A query therefore
// has about 15 bits against codes and 22 against f16, at no extra cost for a gqa_ratio of up to 4.
inline constexpr int32_t kPairsOfProduct = 4;

// Factor by which the low part of a split f16 number is scaled up.
inline constexpr float kHalfSplit = 2048;

struct SplitHalf {
  float high;
  float low;  // times kHalfSplit
};
TESSERA_DEVICE SplitHalf split_half(float x) {
  const float high = simt::as_f32(simt::as_f16(x));
  return {high, (x - high) * kHalfSplit};
}
// Returns: a sum of products with both parts. columns: the sums with the high and the low parts.
TESSERA_DEVICE float sum_of_parts(const float* columns) {
  return simt::fma(columns[1], 1 / kHalfSplit, columns[0]);
}

// Split an integer in [-32512, 32512] into 256 * high + low, both signed bytes.
TESSERA_DEVICE int32_t low_byte(int32_t code) {
  return ((code + 128) & 255) - 128;
}
TESSERA_DEVICE int32_t high_byte(int32_t code) {
  return (code + 128) >> 8;
}

// Work of one attention warp. It is in shared memory, because it is the same for all lanes and
// registers are scarce.
struct WarpTask {
  SequenceSpan span;
  RowTokens row;
  PairBlock block;
  int32_t first_head;  // first query head of the KV head
  int32_t heads;       // gqa_ratio
  int32_t split;       // of the row
  float* scores_left;  // row of AttentionArgs::weights to write scores to (decode only), or null
};

// Shared memory of one warp. Each column is padded by 16 bytes, so that lanes which read the same
// offset of neighbouring columns use different banks.
template <int kDim, int kProducts>
struct WarpMemory {
  static constexpr int kColumns = 8 * kProducts;
  static constexpr int kWeightWords = kKvGroup / 2 + 4;

  alignas(16) TilePlace places[Tile::kPlaces];
  WarpTask task;
  alignas(16) uint8_t codes[kColumns][kDim + 16];  // queries as bytes ...
  alignas(16) f16 halves[kColumns][kDim + 8];      // ... and as f16
  // Weights of a tile, column by column: bytes, f16, or floats (then one column for each pair).
  alignas(16) uint32_t weights[kProducts][8][kWeightWords];
  // Partial softmax of each pair over the splits so far, where one warp takes all splits. Registers
  // for it would be taken during every tile.
  PartialSums merged[kPairsOfProduct * kProducts];
};

// Data of the lane's query in each product: pair lane % 4 of the product's four pairs.
template <int kProducts>
struct Queries {
  float step[kProducts];  // scale of the query's codes
  float sum[kProducts];   // sum of the query's channels
};

// Fills the warp's memory with `pairs` queries, multiplied by `scale`. `scale` includes log2(e), so
// that the softmax uses powers of 2. Queries beyond `pairs` and channels beyond head_dim are 0.
// query(pair): pointer to its first channel, [head_dim].
// Requires: all lanes call it.
template <int kDim, int kProducts, class QueryAt>
TESSERA_DEVICE Queries<kProducts> load_queries(WarpMemory<kDim, kProducts>& memory, int32_t pairs,
                                               int32_t head_dim, float scale, QueryAt&& query) {
  Queries<kProducts> queries = {};
  for (int32_t pair = 0; pair < kPairsOfProduct * kProducts; ++pair) {
    float channels[kDim / simt::kWarp];
    float largest = kMinLargest;
    float sum = 0;
    TESSERA_UNROLL
    for (int32_t i = 0; i < kDim / simt::kWarp; ++i) {
      const int32_t channel = i * simt::kWarp + simt::lane();
      channels[i] = pair < pairs && channel < head_dim ? query(pair)[channel] * scale : 0.0f;
      largest = simt::max(largest, simt::abs(channels[i]));
      sum += channels[i];
    }
    largest = simt::warp_max(largest);
    sum = simt::warp_sum(sum);
    const float inverse = kCodeRange / largest;
    TESSERA_UNROLL
    for (int32_t i = 0; i < kDim / simt::kWarp; ++i) {
      const int32_t channel = i * simt::kWarp + simt::lane();
      const int32_t code = simt::round(channels[i] * inverse);
      memory.codes[2 * pair][channel] = static_cast<uint8_t>(high_byte(code));
      memory.codes[2 * pair + 1][channel] = static_cast<uint8_t>(low_byte(code));
      const SplitHalf half = split_half(channels[i]);
      memory.halves[2 * pair][channel] = simt::as_f16(half.high);
      memory.halves[2 * pair + 1][channel] = simt::as_f16(half.low);
    }
    TESSERA_UNROLL
    for (int32_t product = 0; product < kProducts; ++product) {
      if (pair == product * kPairsOfProduct + simt::lane() % 4) {
        queries.step[product] = largest / kCodeRange;
        queries.sum[product] = sum;
      }
    }
  }
  simt::sync_warp();
  return queries;
}

}  // namespace tessera::cuda
