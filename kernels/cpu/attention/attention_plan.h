#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention/block_cut.h"
#include "kernels/cpu/attention/pair_block.h"
#include "kernels/cpu/attention/shared_runs.h"

namespace tessera {

// Where the items and partials of one sequence and KV head, a row, begin among those of the step.
// Decode has few rows and much context, so a row is split over the spans of its context; a prompt
// has rows enough.
struct RowWork {
  int64_t first_item;
  int64_t first_partial;  // [spans, heads of a group]
  int64_t first_dense;    // groups in args.dense before the sequence's
  int32_t first_split;
  int32_t splits;  // 0: not split
  int32_t read;    // the first of them that runs have read whole: they are no items

  int32_t items() const { return std::max(splits - read, 1); }  // of a block
};

// How a step is cut into items. Rows are counted as sequence * kv_heads + KV head.
class AttentionPlan {
 public:
  static int64_t scratch_bytes(int64_t rows);
  // Spans of a row of so many stored tokens, with a partly filled tile at the end of each tier and
  // the dense one behind them.
  static int64_t max_splits(int32_t context);

  // Cuts rows into spans. `scratch` is aligned as RowWork is.
  AttentionPlan(const AttentionArgs& args, std::byte* scratch);
  // Those of the longest row, with the ones that its window has passed.
  int32_t splits() const { return longest_; }

  // Cuts them into items, so that so many threads are busy.
  void cut_items(const SharedRuns& shared, int threads);
  int64_t items() const { return work_[rows()].first_item; }
  int64_t partials() const { return work_[rows()].first_partial; }
  // As many as one thread takes one after another, so that short ones are worth taking.
  int64_t items_at_once() const { return at_once_; }

  struct Place {
    int64_t row;
    BlockCut::Block block;
    int32_t split;  // among the row's; of one that is not split: 0
  };
  Place at(int64_t item) const;

  int64_t rows() const { return std::ssize(args_.sequences) * args_.pages.kv_heads; }
  const RowWork& work(int64_t row) const { return work_[row]; }
  const SequenceSpan& sequence(int64_t row) const {
    return args_.sequences[static_cast<size_t>(row / args_.pages.kv_heads)];
  }
  int32_t kv_head(int64_t row) const { return static_cast<int32_t>(row % args_.pages.kv_heads); }

 private:
  const AttentionArgs& args_;
  int32_t group_;  // query heads of a KV head
  RowWork* work_;  // [rows + 1]
  int32_t longest_ = 0;
  int64_t pair_tiles_ = 0;  // of all items
  int64_t at_once_ = 1;
};

}  // namespace tessera
