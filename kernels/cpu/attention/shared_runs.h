#pragma once

#include <cstdint>

#include "kernels/cpu/attention/row_tokens.h"
#include "kernels/cpu/tiles/pair_block.h"

namespace tessera {

// Tiles that several sequences of a step read from the same pages, so that one item serves the
// pairs of all of them. Hydragen and ChunkAttention also cut attention into a shared part, computed
// first, and a part for each sequence. A run is inside one split, at its beginning.
struct SharedRun {
  int32_t kv_head;
  int32_t first_tile;  // [first_tile, end_tile)
  int32_t end_tile;
  int32_t first;  // index of its first sequence in SharedRuns::order_
  int32_t sequences;

  bool ends_split() const { return end_tile % kSplitTiles == 0; }
};

// Shared runs of a step, found from the page tables. The same page at the same place is the same
// tokens, shared by the prefix cache, by samples of one prompt, or by both. A sequence takes part
// if it has one new token, reads all tiles and writes no weights for kv_score. Only the high tier
// is shared. Under a sliding window, a sequence takes part only if it sees all its tokens. Runs are
// found for each split separately, and a sequence is in at most one run of a split. Different
// splits may therefore be shared by different sets of sequences. `args` and `scratch` are not owned
// and must outlive this.
class SharedRuns {
 public:
  // Returns: bytes of scratch for `sequences` sequences and rows of at most `splits` splits, a
  // multiple of 64.
  static int64_t scratch_bytes(int64_t sequences, int64_t kv_heads, int64_t splits);

  // Finds the runs and stores them in `scratch`. It cuts them so that `threads` threads are busy.
  // Finds nothing if args.share_reads is false.
  // Requires: `scratch` has scratch_bytes(sequences of args, ...) bytes.
  SharedRuns(const AttentionArgs& args, int32_t splits, int32_t threads, std::byte* scratch);

  int64_t count() const { return count_; }
  const SharedRun& run(int64_t index) const { return runs_[index]; }
  // Returns: index in args.sequences of the i-th sequence of a run.
  int32_t sequence(const SharedRun& run, int32_t i) const { return order_[run.first + i]; }
  // Returns: number of leading tiles of a split that are in a run. `row`: sequence * kv_heads + KV
  // head.
  int32_t tiles(int64_t row, int32_t split) const { return tiles_[row * splits_ + split]; }
  // Returns: true if any split of the row has a run.
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
  int32_t step_ = 0;  // sequences whose pairs fill whole steps
  int32_t max_ = 0;   // maximum sequences in a run
  int32_t ordered_ = 0;
  int64_t count_ = 0;
  SharedRun* runs_;  // [sequences, kv_heads, splits]
  int32_t* order_;   // sequences that may share, sorted by their pages
  int32_t* common_;  // tiles that order[i] and order[i + 1] have in common
  uint8_t* tiles_;   // [sequences, kv_heads, splits]
};

}  // namespace tessera
