#include "kernels/cpu/attention/shared_runs.h"

#include <algorithm>
#include <numeric>
#include <span>

namespace tessera {
namespace {

// Pairs of a run are a multiple of this if possible, to fill the kernels' steps. A step serves 4 or
// 8 pairs of codes, or 6 of floats; the last step of floats then has 4.
constexpr int32_t kPairsOfSteps = 16;

// Minimum number of runs for each thread in each split, so that no thread waits long for the
// others.
constexpr int32_t kItemsOfAThread = 2;

// Returns: full pages of the high tier of a row, as the one new query of its sequence sees them.
std::span<const int32_t> full_pages(const AttentionArgs& args, int32_t sequence, int32_t kv_head) {
  const SequenceSpan& span = args.sequences[static_cast<size_t>(sequence)];
  const RowTokens row = row_tokens(args, span, 0, kv_head, span.last_group());
  return {row.page_ids, static_cast<size_t>(row.high / row.high_layout->capacity)};
}

}  // namespace

int64_t SharedRuns::scratch_bytes(int64_t sequences, int64_t kv_heads, int64_t splits) {
  const int64_t row_splits = sequences * kv_heads * splits;
  return round_up(row_splits * int64_t{sizeof(SharedRun)} +
                      2 * sequences * int64_t{sizeof(int32_t)} + row_splits,
                  64);
}

SharedRuns::SharedRuns(const AttentionArgs& args, int32_t splits, int32_t threads,
                       std::byte* scratch)
    : args_(args), splits_(splits) {
  const int64_t sequences = std::ssize(args.sequences);
  const int32_t kv_heads = args.pages.kv_heads;
  const int64_t row_splits = sequences * kv_heads * splits;
  runs_ = reinterpret_cast<SharedRun*>(scratch);
  order_ = reinterpret_cast<int32_t*>(runs_ + row_splits);
  common_ = order_ + sequences;
  tiles_ = reinterpret_cast<uint8_t*>(common_ + sequences);
  std::fill_n(tiles_, row_splits, uint8_t{0});
  const int32_t fitting = PairBlock::kPairs / (args.query_heads / kv_heads);
  if (!args.share_reads || fitting < 2) {
    return;
  }
  sort();
  // A run has as many sequences as fit into a block, or fewer if the KV heads alone would not keep
  // the threads busy. The number is rounded so that steps of pairs are full if possible.
  const int32_t busy = ordered_ * kv_heads / (kItemsOfAThread * threads);
  step_ = std::min(fitting, kPairsOfSteps / std::gcd(kPairsOfSteps, args.query_heads / kv_heads));
  max_ = std::clamp(whole_steps(busy), std::max(2, step_), fitting / step_ * step_);
  for (int32_t kv_head = 0; kv_head < kv_heads && ordered_ > 1; ++kv_head) {
    int32_t longest = 0;
    for (int32_t i = 0; i + 1 < ordered_; ++i) {
      common_[i] = common_tiles(order_[i], order_[i + 1], kv_head);
      longest = std::max(longest, common_[i]);
    }
    for (int32_t tile = 0; tile < longest; tile += kSplitTiles) {
      cut(kv_head, tile, 0, ordered_);
    }
  }
}

bool SharedRuns::any(int64_t row) const {
  const uint8_t* tiles = tiles_ + row * splits_;
  return std::any_of(tiles, tiles + splits_, [](uint8_t count) { return count > 0; });
}

// Sorts by the pages of the first KV head, because prefix blocks and samples share the pages of all
// heads alike. If they did not, fewer runs would be found.
void SharedRuns::sort() {
  for (int32_t i = 0; i < static_cast<int32_t>(args_.sequences.size()); ++i) {
    const SequenceSpan& span = args_.sequences[static_cast<size_t>(i)];
    if (span.count == 1 && !selects(args_, span) && first_visible(args_, span.context) == 0 &&
        !leaves_attention_weights(args_, static_cast<size_t>(i))) {
      order_[ordered_++] = i;
    }
  }
  std::sort(order_, order_ + ordered_, [&](int32_t one, int32_t other) {
    const auto pages = full_pages(args_, one, 0);
    const auto others = full_pages(args_, other, 0);
    return std::lexicographical_compare(pages.begin(), pages.end(), others.begin(), others.end());
  });
}

int32_t SharedRuns::common_tiles(int32_t one, int32_t other, int32_t kv_head) const {
  const auto pages = full_pages(args_, one, kv_head);
  const auto others = full_pages(args_, other, kv_head);
  const auto differ = std::mismatch(pages.begin(), pages.end(), others.begin(), others.end());
  const int64_t same = differ.first - pages.begin();
  const uint8_t tier = args_.sequences[static_cast<size_t>(one)].tiers.high;
  return static_cast<int32_t>(same * args_.pages.layouts[tier].capacity / kAttentionTile);
}

// Makes runs of order[begin, end) in the split that begins with `first_tile`. One range of all
// sequences is as long as the shortest prefix that two neighbours have in common. If cutting the
// range there saves more reads, both parts are handled separately.
void SharedRuns::cut(int32_t kv_head, int32_t first_tile, int32_t begin, int32_t end) {
  int32_t shortest = kSplitTiles;
  int32_t at = begin;
  int32_t sum = 0;
  for (int32_t i = begin; i + 1 < end; ++i) {
    const int32_t tiles = std::clamp(common_[i] - first_tile, 0, kSplitTiles);
    sum += tiles;
    if (tiles < shortest) {
      shortest = tiles;
      at = i;
    }
  }
  if (sum == 0) {
    return;
  }
  if (shortest * (end - begin - 1) >= sum - shortest) {
    const int32_t runs = static_cast<int32_t>(div_ceil(end - begin, max_));
    const int32_t each = whole_steps(static_cast<int32_t>(div_ceil(end - begin, runs)));
    for (int32_t first = begin; first < end; first += each) {
      add({kv_head, first_tile, first_tile + shortest, first, std::min(each, end - first)});
    }
    return;
  }
  cut(kv_head, first_tile, begin, at + 1);
  cut(kv_head, first_tile, at + 1, end);
}

void SharedRuns::add(const SharedRun& run) {
  if (run.sequences < 2) {
    return;
  }
  runs_[count_++] = run;
  for (int32_t i = 0; i < run.sequences; ++i) {
    const int64_t row = int64_t{sequence(run, i)} * args_.pages.kv_heads + run.kv_head;
    tiles_[row * splits_ + run.first_tile / kSplitTiles] =
        static_cast<uint8_t>(run.end_tile - run.first_tile);
  }
}

}  // namespace tessera
