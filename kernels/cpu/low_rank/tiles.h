#pragma once

#include <cstddef>
#include <cstdint>

// Interface of the kernels of an instruction set: functions on plain pointers. Nothing else is
// included here, so that files compiled with wide instructions emit no shared inline function.
namespace tessera {

// Both matrices are made of blocks of 32 numbers, zero beyond the last number. A block of f32 has
// them in order. A block of bf16 has 16 words, and word i has number i in its low half and number
// i + 16 in its high half: a shift or a mask makes f32 of each half, and no lane moves.
//   A  [groups of 4 ranks][blocks of inputs][4 ranks]
//   B  [panels of 2 blocks of outputs][ranks][2 blocks]
// So a tile reads memory from begin to end, in one stream, which the CPU fetches ahead by itself.
// Two streams that take turns had 0.6 of the speed.
inline constexpr int64_t kLowRankBlock = 32;
inline constexpr int64_t kTileRanks = 4;
inline constexpr int64_t kPanelBlocks = 2;
inline constexpr int64_t kPanelOutputs = kPanelBlocks * kLowRankBlock;

constexpr int64_t low_rank_block_bytes(bool is_bf16) {
  return kLowRankBlock * (is_bf16 ? 2 : 4);
}

// low = A in, for a group of ranks and any number of rows. The sum of a rank and a row has one
// order.
struct DownTile {
  const std::byte* matrix;  // blocks of the group
  int64_t inputs;
  int64_t ranks;  // of the group that exist
  int64_t rows;
  const float* in;
  int64_t in_stride;
  float* low;
  int64_t low_stride;
};

// out += B low, for some outputs and any number of rows. Ranks are added in ascending order.
struct UpTile {
  const std::byte* matrix;  // the first panel
  int64_t ranks;
  int64_t outputs;
  int64_t rows;
  const float* low;
  int64_t low_stride;
  float* out;
  int64_t out_stride;
};

struct LowRankTiles {
  void (*down[2])(const DownTile&);  // f32, bf16
  void (*up[2])(const UpTile&);
};

namespace scalar {
extern const LowRankTiles kLowRankTiles;
}
namespace avx2 {
extern const LowRankTiles kLowRankTiles;
}
namespace avx512 {
extern const LowRankTiles kLowRankTiles;
}

}  // namespace tessera
