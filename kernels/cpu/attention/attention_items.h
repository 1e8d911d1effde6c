#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cpu/attention/block_cut.h"
#include "kernels/cpu/attention/tile_walk.h"
#include "kernels/cpu/tiles/pair_block.h"

// Work items of attention, and the tokens of a tile that an item reads.
namespace tessera {

// One work item: a block of pairs of one (sequence, KV head) and its tiles.
struct Item {
  const SequenceSpan& sequence;
  int32_t kv_head;
  BlockCut::Block block;
  TileWalk walk;
  float* left;             // row of args.weights for kv_score; null: no weights are written
  int32_t first_position;  // position of the first query; the last one follows
  int32_t last_position;
};

// Tokens [begin, end) of a tile that at least one pair sees. `first` is the position of token 0. It
// is used for the dense group and under a sliding window only.
struct TileRange {
  int32_t first;
  int32_t begin;
  int32_t end;
  bool whole;  // every pair sees the whole tile
};

inline uint64_t bits_between(int32_t begin, int32_t end) {
  const int32_t first = std::clamp(begin, 0, kAttentionTile);
  const int32_t last = std::clamp(end, 0, kAttentionTile);
  return first < last ? ~uint64_t{0} >> (kAttentionTile - (last - first)) << first : 0;
}

}  // namespace tessera
