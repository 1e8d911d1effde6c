#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cpu/attention/block_cut.h"
#include "kernels/cpu/attention/pair_block.h"
#include "kernels/cpu/attention/tile_walk.h"

// What attention cuts a step into: rows into spans, items, and what an item sees of a tile.
namespace tessera {

// Where the items and partials of one sequence and KV head begin among those of the step. Decode
// has few rows and much context, so it is split over the spans of its context; a prompt has rows
// enough.
struct RowWork {
  int64_t first_item;
  int64_t first_partial;  // [spans, heads of a group]
  int64_t first_dense;    // groups in args.dense before the sequence's
  int32_t first_span;
  int32_t spans;  // 0: not split
  int32_t read;   // the first of them that runs have read whole: they are no items

  int32_t items() const { return std::max(spans - read, 1); }  // of a block
};

inline int64_t work_bytes(int64_t rows) {
  return round_up((rows + 1) * int64_t{sizeof(RowWork)}, 64);
}

// Spans of a row of so many stored tokens, with a partly filled tile at the end of each tier and
// the dense one behind them.
inline int64_t most_spans(int32_t context) {
  return div_ceil(context / kAttentionTile + 3, kSpanTiles);
}

struct Item {
  const SequenceSpan& sequence;
  int32_t kv_head;
  BlockCut::Block block;
  const TileWalk& walk;
  float* left;  // the row of args.weights, of a query that kv_score wants them of; or null
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
