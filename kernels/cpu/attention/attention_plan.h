#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention/block_cut.h"
#include "kernels/cpu/attention/shared_runs.h"
#include "kernels/cpu/attention/tile_selection.h"
#include "kernels/cpu/tiles/pair_block.h"

namespace tessera {

// First item and first partial of one row of the step. A row is one (sequence, KV head). Decode has
// few rows and long contexts, so a row is cut into splits. A prompt has enough rows.
struct RowWork {
  int64_t first_item;
  int64_t first_partial;  // [splits, gqa_ratio]
  int64_t first_dense;    // groups of earlier sequences in args.dense
  int32_t first_split;
  int32_t splits;  // 0: not split
  int32_t read;    // leading splits that shared runs read as a whole; they need no items

  int32_t items() const { return std::max(splits - read, 1); }  // items in one block
};

// Cuts the attention of a step into work items. The index of a row is sequence * kv_heads + KV
// head. `args`, `selection` and `scratch` are not owned and must outlive the plan.
class AttentionPlan {
 public:
  // Returns: bytes of scratch for `rows` rows, a multiple of 64.
  static int64_t scratch_bytes(int64_t rows);
  // Returns: maximum number of splits of a row of `context` stored tokens. Each tier may end with a
  // partly filled tile, and the dense tile follows them.
  static int64_t max_splits(int32_t context);

  // Cuts rows into splits.
  // Requires: `scratch` has scratch_bytes(rows) bytes and the alignment of RowWork.
  // Errors: aborts if a row has fewer closed groups than its sequence.
  AttentionPlan(const AttentionArgs& args, const TileSelection& selection, std::byte* scratch);
  // Returns: number of splits of the longest row, including those that its sliding window has
  // passed.
  int32_t splits() const { return longest_; }

  // Cuts the splits into items, so that `threads` threads are busy. Call it once, before items()
  // and partials().
  void cut_items(const SharedRuns& shared, int threads);
  int64_t items() const { return work_[rows()].first_item; }
  int64_t partials() const { return work_[rows()].first_partial; }
  // Returns: number of items that a thread claims at once, so that short items are worth a claim.
  int64_t items_at_once() const { return at_once_; }

  struct Place {
    int64_t row;
    BlockCut::Block block;
    int32_t split;  // counted from RowWork::first_split; 0 if the row is not split
  };
  Place at(int64_t item) const;

  int64_t rows() const { return std::ssize(args_.sequences) * args_.pages.kv_heads; }
  const RowWork& work(int64_t row) const { return work_[row]; }
  const SequenceSpan& sequence(int64_t row) const {
    return args_.sequences[static_cast<size_t>(row / args_.pages.kv_heads)];
  }
  int32_t kv_head(int64_t row) const { return static_cast<int32_t>(row % args_.pages.kv_heads); }
  // Returns: the tokens of a row that the queries of a KV group read.
  RowTokens tokens(int64_t row, int32_t group) const {
    return selection_.tokens(row, work_[row].first_dense, group);
  }

 private:
  const AttentionArgs& args_;
  const TileSelection& selection_;
  int32_t group_;  // gqa_ratio
  RowWork* work_;  // [rows + 1]
  int32_t longest_ = 0;
  int64_t pair_tiles_ = 0;  // pairs times tiles, of all items
  int64_t at_once_ = 1;
};

}  // namespace tessera
