#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cpu/attention/block_cut.h"
#include "kernels/cpu/attention/pair_block.h"
#include "kernels/cpu/attention/tile_walk.h"

// An item of attention, and what it sees of a tile.
namespace tessera {

struct Item {
  const SequenceSpan& sequence;
  int32_t kv_head;
  BlockCut::Block block;
  TileWalk walk;
  float* left;  // the row of args.weights, of a query that kv_score wants them of; or null
  int32_t first_position;  // of its queries
  int32_t last_position;
};

// The tokens [begin, end) of a tile that some pair sees; `first` is the position of token 0 where
// positions matter.
struct TileRange {
  int32_t first;
  int32_t begin;
  int32_t end;
  bool whole;  // each of them sees all of it
};

inline uint64_t bits_between(int32_t begin, int32_t end) {
  const int32_t first = std::clamp(begin, 0, kAttentionTile);
  const int32_t last = std::clamp(end, 0, kAttentionTile);
  return first < last ? ~uint64_t{0} >> (kAttentionTile - (last - first)) << first : 0;
}

}  // namespace tessera
