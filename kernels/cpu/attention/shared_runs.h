#pragma once

#include <cstdint>

#include "kernels/cpu/attention/pair_block.h"
#include "kernels/cpu/attention/row_tokens.h"

namespace tessera {

// Tiles that several sequences of a step read from the very same pages, so that one item can serve
// the pairs of all of them (Hydragen and ChunkAttention; both cut attention into what is shared,
// first, and what is a sequence's own). A run lies in one span, at its beginning.
struct SharedRun {
  int32_t kv_head;
  int32_t first_tile;  // [first_tile, end_tile)
  int32_t end_tile;
  int32_t first;  // of SharedRuns::order
  int32_t sequences;

  bool ends_split() const { return end_tile % kSplitTiles == 0; }
};

// The runs of a step, read off the page tables: the same page at the same place is the same tokens,
// whoever brought the sequences together (the prefix cache, samples of one prompt, both). Only
// sequences of one new token take part that leave no weights for kv_score, only the high tier, and
// under a window only those that see everything. Pages shared among some sequences and further ones
// among fewer of them are found span by span, in each of which a sequence stands in one run at
// most.
class SharedRuns {
 public:
  // For `sequences` sequences and rows of at most `spans` spans, a multiple of 64.
  static int64_t scratch_bytes(int64_t sequences, int64_t kv_heads, int64_t splits);

  // `scratch`, scratch_bytes(sequences of args, ...), holds what is found; `threads` are to have
  // something to do each. Finds nothing where args.share_reads is false.
  SharedRuns(const AttentionArgs& args, int32_t splits, int32_t threads, std::byte* scratch);

  int64_t count() const { return count_; }
  const SharedRun& run(int64_t index) const { return runs_[index]; }
  // The i-th sequence of a run: its place in args.sequences.
  int32_t sequence(const SharedRun& run, int32_t i) const { return order_[run.first + i]; }
  // How many first tiles of a span stand in a run. `row`: sequence * kv_heads + KV head.
  int32_t tiles(int64_t row, int32_t split) const { return tiles_[row * splits_ + split]; }
  bool any(int64_t row) const;

 private:
  void sort();
  int32_t whole_steps(int32_t sequences) const {
    return static_cast<int32_t>(round_up(sequences, step_));
  }
  int32_t common_tiles(int32_t one, int32_t other, int32_t kv_head) const;
  void cut(int32_t kv_head, int32_t first_tile, int32_t begin, int32_t end);
  void add(const SharedRun& run);

  const AttentionArgs& args_;
  int32_t splits_;
  int32_t step_ = 0;  // so many sequences have the pairs of whole steps
  int32_t max_ = 0;   // sequences of a run
  int32_t ordered_ = 0;
  int64_t count_ = 0;
  SharedRun* runs_;  // [sequences, kv_heads, spans]
  int32_t* order_;   // sequences that may share; those with common pages side by side
  int32_t* common_;  // tiles that order[i] and order[i + 1] have in common
  uint8_t* tiles_;   // [sequences, kv_heads, spans]
};

}  // namespace tessera
