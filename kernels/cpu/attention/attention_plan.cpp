#include "kernels/cpu/attention/attention_plan.h"

#include "base/check.h"

namespace tessera {
namespace {

// Minimum number of rows for each thread, so that no thread waits long for the others.
constexpr int64_t kRowsOfAThread = 8;

// Pair tiles (pairs times tiles) that a thread claims at once: a few microseconds of work.
constexpr int64_t kPairTilesAtOnce = 16;

}  // namespace

int64_t AttentionPlan::scratch_bytes(int64_t rows) {
  return round_up((rows + 1) * int64_t{sizeof(RowWork)}, 64);
}

int64_t AttentionPlan::max_splits(int32_t context) {
  return div_ceil(context / kAttentionTile + 3, kSplitTiles);
}

AttentionPlan::AttentionPlan(const AttentionArgs& args, const TileSelection& selection,
                             std::byte* scratch)
    : args_(args),
      selection_(selection),
      group_(args.query_heads / args.pages.kv_heads),
      work_(reinterpret_cast<RowWork*>(scratch)) {
  RowWork next{};
  for (int64_t row = 0; row < rows(); ++row) {
    const SequenceSpan& span = sequence(row);
    const RowTokens tokens = selection.tokens(row, next.first_dense, span.last_group());
    TESSERA_CHECK(tokens.high >= 0 && tokens.low >= 0, "attention: a row lacks closed groups");
    next.first_split = first_visible(args, span.context) / (kAttentionTile * kSplitTiles);
    next.splits = (tokens.tiles() - 1) / kSplitTiles + 1 - next.first_split;
    longest_ = std::max(longest_, next.first_split + next.splits);
    pair_tiles_ += int64_t{span.count} * group_ * (tokens.tiles() - next.first_split * kSplitTiles);
    work_[row] = next;
    next.first_dense += kv_head(row) == args.pages.kv_heads - 1 ? dense_groups(span) : 0;
  }
}

void AttentionPlan::cut_items(const SharedRuns& shared, int threads) {
  int64_t all_splits = 0;
  for (int64_t row = 0; row < rows(); ++row) {
    all_splits += work_[row].splits;
  }
  // A row that is a small part of a thread's work is not split. No partial is then passed between
  // threads, and the row is read in one run of memory. The results are the same bit for bit.
  const int64_t whole = all_splits / (threads * kRowsOfAThread);
  RowWork next{};
  for (int64_t row = 0; row < rows(); ++row) {
    RowWork& work = work_[row];
    work.first_item = next.first_item;
    work.first_partial = next.first_partial;
    if (!shared.any(row) && (sequence(row).count > 1 || work.splits == 1 || work.splits <= whole)) {
      work.splits = 0;
    }
    while (work.read < work.splits &&
           shared.tiles(row, work.first_split + work.read) == kSplitTiles) {
      ++work.read;
    }
    pair_tiles_ -= int64_t{work.read} * kSplitTiles * group_;
    next.first_item += BlockCut(sequence(row), group_).blocks() * work.items();
    next.first_partial += int64_t{work.splits} * group_;
  }
  work_[rows()] = next;
  const int64_t max = std::max<int64_t>(1, items() / (2 * kRowsOfAThread * threads));
  at_once_ =
      std::clamp<int64_t>(kPairTilesAtOnce * items() / std::max<int64_t>(pair_tiles_, 1), 1, max);
}

// Splits vary fastest, so that threads read neighbouring pages. The last block of a prompt is the
// longest and comes first, so that no thread starts it when the others are done.
AttentionPlan::Place AttentionPlan::at(int64_t item) const {
  const RowWork* const work =
      std::upper_bound(work_, work_ + rows(), item,
                       [](int64_t index, const RowWork& at) { return index < at.first_item; }) -
      1;
  const int64_t row = work - work_;
  const BlockCut cut(sequence(row), group_);
  const int64_t local = item - work->first_item;
  return {row, cut.block(cut.blocks() - 1 - local / work->items()),
          work->read + static_cast<int32_t>(local % work->items())};
}

}  // namespace tessera
