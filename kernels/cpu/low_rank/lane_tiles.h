#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/low_rank/tiles.h"

namespace tessera {

// The kernels over a type of one instruction set:
//   V       a vector of f32
//   kRows   rows that share a loaded block
//   load()  a block as f32
// Numbers of a row beyond its last whole block go through a padded copy, so that the arithmetic of
// a row does not depend on its place.
template <class Blocks, bool kIsBf16>
struct LaneTiles {
  using V = typename Blocks::V;
  static constexpr int kVectors = kLowRankBlock / V::kLanes;
  static constexpr int64_t kBytes = low_rank_block_bytes(kIsBf16);

  // Adds a block of inputs to the sums of R rows. `in` has a pointer to each row's.
  template <int R>
  [[gnu::always_inline]] static inline void add_block(const std::byte* matrix,
                                                      const float* const (&in)[R],
                                                      V (&sums)[R][kTileRanks]) {
    V inputs[R][kVectors];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        inputs[r][v] = V::load(in[r] + v * V::kLanes);
      }
    }
#pragma GCC unroll 4
    for (int rank = 0; rank < kTileRanks; ++rank) {
      V numbers[kVectors];
      Blocks::template load<kIsBf16>(matrix + rank * kBytes, numbers);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          sums[r][rank] = V::fma(numbers[v], inputs[r][v], sums[r][rank]);
        }
      }
    }
  }

  template <int R>
  static void narrow(const DownTile& tile, int64_t first_row) {
    const std::byte* matrix = tile.matrix;
    const float* in[R];
    V sums[R][kTileRanks];
    for (int r = 0; r < R; ++r) {
      in[r] = tile.in + (first_row + r) * tile.in_stride;
      for (int rank = 0; rank < kTileRanks; ++rank) sums[r][rank] = V::zero();
    }
    int64_t left = tile.inputs;
    for (; left >= kLowRankBlock; left -= kLowRankBlock, matrix += kTileRanks * kBytes) {
      add_block<R>(matrix, in, sums);
      for (int r = 0; r < R; ++r) in[r] += kLowRankBlock;
    }
    if (left > 0) {
      float padded[R][kLowRankBlock] = {};
      for (int r = 0; r < R; ++r) {
        for (int64_t i = 0; i < left; ++i) padded[r][i] = in[r][i];
        in[r] = padded[r];
      }
      add_block<R>(matrix, in, sums);
    }
    for (int r = 0; r < R; ++r) {
      float* low = tile.low + (first_row + r) * tile.low_stride;
      for (int64_t rank = 0; rank < tile.ranks; ++rank) low[rank] = sums[r][rank].sum();
    }
  }

  // Adds the first `left` outputs of a panel, at most.
  static void add_outputs(const V (&sums)[kPanelBlocks * kVectors], int64_t left, float* out) {
#pragma GCC unroll 8
    for (int v = 0; v < kPanelBlocks * kVectors; ++v, left -= V::kLanes, out += V::kLanes) {
      if (left >= V::kLanes) {
        (V::load(out) + sums[v]).store(out);
      } else if (left > 0) {
        float padded[V::kLanes];
        sums[v].store(padded);
        for (int64_t i = 0; i < left; ++i) out[i] += padded[i];
      }
    }
  }

  // Widens R rows to a panel of outputs.
  template <int R>
  static void widen(const UpTile& tile, const std::byte* matrix, int64_t first_row,
                    int64_t first_output) {
    const float* low = tile.low + first_row * tile.low_stride;
    V sums[R][kPanelBlocks * kVectors];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kPanelBlocks * kVectors; ++v) sums[r][v] = V::zero();
    }
    for (int64_t rank = 0; rank < tile.ranks; ++rank, ++low) {
#pragma GCC unroll 2
      for (int block = 0; block < kPanelBlocks; ++block, matrix += kBytes) {
        V numbers[kVectors];
        Blocks::template load<kIsBf16>(matrix, numbers);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          const V input = V::all(low[r * tile.low_stride]);
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) {
            V& sum = sums[r][block * kVectors + v];
            sum = V::fma(numbers[v], input, sum);
          }
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      add_outputs(sums[r], tile.outputs - first_output,
                  tile.out + (first_row + r) * tile.out_stride + first_output);
    }
  }

  template <int R>
  static void widen_rows(const UpTile& tile, int64_t first_row) {
    const std::byte* matrix = tile.matrix;
    for (int64_t output = 0; output < tile.outputs; output += kPanelOutputs) {
      widen<R>(tile, matrix, first_row, output);
      matrix += tile.ranks * kPanelBlocks * kBytes;
    }
  }

  // Calls for_rows<R>(first row) for all rows.
  template <class Tile, class F>
  static void by_rows(const Tile& tile, F for_rows) {
    int64_t row = 0;
    for (; tile.rows - row >= Blocks::kRows; row += Blocks::kRows) {
      for_rows.template operator()<Blocks::kRows>(row);
    }
    for (; row < tile.rows; ++row) for_rows.template operator()<1>(row);
  }

  static void down(const DownTile& tile) {
    by_rows(tile, [&]<int R>(int64_t row) { narrow<R>(tile, row); });
  }
  static void up(const UpTile& tile) {
    by_rows(tile, [&]<int R>(int64_t row) { widen_rows<R>(tile, row); });
  }
};

}  // namespace tessera
