#include <cstring>

#include "kernels/cpu/low_rank/tiles.h"
#include "kernels/matrix/half.h"

namespace tessera::scalar {
namespace {

// Returns: a number of a matrix, from the block it is in.
template <bool kIsBf16>
float number_at(const std::byte* block, int64_t index) {
  float number;
  if constexpr (kIsBf16) {
    constexpr int64_t kWords = kLowRankBlock / 2;
    bf16 half;
    std::memcpy(&half, block + index % kWords * 4 + index / kWords * 2, sizeof(half));
    number = to_f32(half);
  } else {
    std::memcpy(&number, block + index * 4, sizeof(number));
  }
  return number;
}

template <bool kIsBf16>
void narrow_rows(const DownTile& tile) {
  constexpr int64_t kBytes = low_rank_block_bytes(kIsBf16);
  for (int64_t row = 0; row < tile.rows; ++row) {
    const float* in = tile.in + row * tile.in_stride;
    for (int64_t rank = 0; rank < tile.ranks; ++rank) {
      float sum = 0;
      for (int64_t i = 0; i < tile.inputs; ++i) {
        const int64_t block = i / kLowRankBlock * kTileRanks + rank;
        sum += number_at<kIsBf16>(tile.matrix + block * kBytes, i % kLowRankBlock) * in[i];
      }
      tile.low[row * tile.low_stride + rank] = sum;
    }
  }
}

template <bool kIsBf16>
void widen_rows(const UpTile& tile) {
  constexpr int64_t kBytes = low_rank_block_bytes(kIsBf16);
  for (int64_t row = 0; row < tile.rows; ++row) {
    const float* low = tile.low + row * tile.low_stride;
    for (int64_t i = 0; i < tile.outputs; ++i) {
      float sum = 0;
      for (int64_t rank = 0; rank < tile.ranks; ++rank) {
        const int64_t block = (i / kPanelOutputs * tile.ranks + rank) * kPanelBlocks +
                              i % kPanelOutputs / kLowRankBlock;
        sum += number_at<kIsBf16>(tile.matrix + block * kBytes, i % kLowRankBlock) * low[rank];
      }
      tile.out[row * tile.out_stride + i] += sum;
    }
  }
}

}  // namespace

const LowRankTiles kLowRankTiles{
    {narrow_rows<false>, narrow_rows<true>},
    {widen_rows<false>, widen_rows<true>},
};

}  // namespace tessera::scalar
