#include "base/check.h"
#include "kernels/cuda/attention/split_list.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/simt/block.h"

namespace tessera::cuda {
namespace {

using namespace simt;

constexpr int32_t kMaxThreads = 1024;
constexpr int32_t kNothing = -1;

struct ListMemory {
  OfWarps<int32_t> totals;
  int32_t keys[kMaxListedRows];     // first page of a row's split; kNothing: it is not shared
  int32_t leaders[kMaxListedRows];  // first row that has the same split; kNothing: there is none
};

// A row of the step in one layer, as its query token will read it.
struct ListedRow {
  int32_t kv_head;
  const int32_t* page_ids;
  int32_t high_pages;  // full pages of the high tier; 0: the row shares nothing
  int32_t capacity;    // tokens of such a page
  int32_t tiles;       // 0: the row is not listed

  TESSERA_DEVICE int32_t splits() const { return tiles == 0 ? 0 : split_count(tiles); }
  TESSERA_DEVICE int32_t slices() const { return tiles == 0 ? 0 : slice_count(tiles); }
  TESSERA_DEVICE int32_t split_tokens() const { return split_tiles(tiles) * kKvGroup; }
  // Pages of a split of the high tier: [first_page, end_page).
  TESSERA_DEVICE int32_t first_page(int32_t split) const {
    return split * split_tokens() / capacity;
  }
  TESSERA_DEVICE int32_t end_page(int32_t split) const {
    return ((split + 1) * split_tokens() + capacity - 1) / capacity;
  }
  // Returns: true if the split lies in full pages of the high tier.
  TESSERA_DEVICE bool shares(int32_t split) const {
    return split < splits() && end_page(split) <= high_pages;
  }
};

// Makes the list of one layer. One block runs it.
class LayerList {
 public:
  TESSERA_DEVICE LayerList(const PlanAttentionArgs& args, const SequenceSpan* sequences,
                           const KvScoring* scorings, const SplitLists& lists,
                           const ListShape& shape)
      : args_(args),
        sequences_(sequences),
        scorings_(scorings),
        lists_(lists),
        tokens_(shape.tokens),
        blocks_(shape.blocks),
        rows_(static_cast<int32_t>(shape.rows())) {}

  // Splits that are at most `few` are listed by slices, which nothing shares.
  TESSERA_DEVICE void make(int64_t few) {
    counts_.slices = all_splits() <= few ? 1 : kSlicesOfSplit;
    int32_t split = 0;
    if (counts_.slices > 1 && args_.share_reads && fitting() > 1) {
      // Rows that have a split in common have those before it in common, so the first split that
      // no rows share is the last one to be searched.
      bool any = true;
      for (; any; ++split) {
        find_keys(split);
        sync_block();
        find_leaders(split);
        sync_block();
        any = put_split(split);
        sync_block();  // keys and leaders have been read
      }
    }
    put_rest(split);
    if (thread() == 0) {
      lists_.counts[block_x()] = counts_;
    }
  }

 private:
  TESSERA_DEVICE int32_t fitting() const {
    return queries_of_item(args_.query_heads / args_.pages.kv_heads);
  }

  // Returns: number of items if each is a split of one row.
  TESSERA_DEVICE int64_t all_splits() const {
    int32_t splits = 0;
    for (int32_t i = thread(); i < rows_; i += threads()) {
      splits += row(i).splits();
    }
    return int64_t{block_place(splits, shared<ListMemory>().totals).all} * blocks_;
  }

  TESSERA_DEVICE ListedRow row(int32_t index) const {
    const KvPagesView& pages = args_.pages;
    const int32_t query = index / pages.kv_heads;
    const int32_t sequence = query / tokens_;
    const SequenceSpan& span = sequences_[sequence];
    if (span.count > tokens_ || query % tokens_ >= span.count) {
      return {};
    }
    const int32_t kv_head = index % pages.kv_heads;
    const int32_t position = span.context + query % tokens_;
    const int64_t at = pages.row_index(span.slot, block_x(), kv_head);
    const RowTokens tokens =
        StepRows{pages, block_x(), nullptr}.counts(span, at, position / kKvGroup, args_.stored);
    const bool alone = (args_.sliding_window > 0 && position >= args_.sliding_window) ||
                       (scorings_ != nullptr && has_attention_weight_rows(args_, span, sequence) &&
                        scorings_[sequence].includes(span.context));
    const int32_t capacity = pages.layouts[span.tiers.high].capacity;
    return {.kv_head = kv_head,
            .page_ids = tokens.page_ids,
            .high_pages = alone ? 0 : tokens.high / capacity,
            .capacity = capacity,
            .tiles = tokens.tiles()};
  }

  TESSERA_DEVICE void find_keys(int32_t split) const {
    ListMemory& memory = shared<ListMemory>();
    for (int32_t i = thread(); i < rows_; i += threads()) {
      const ListedRow own = row(i);
      memory.keys[i] = own.shares(split) ? own.page_ids[own.first_page(split)] : kNothing;
    }
  }

  TESSERA_DEVICE void find_leaders(int32_t split) const {
    ListMemory& memory = shared<ListMemory>();
    for (int32_t i = thread(); i < rows_; i += threads()) {
      const ListedRow own = row(i);
      int32_t leader = i;
      if (memory.keys[i] != kNothing) {
        leader = own.kv_head;
        while (memory.keys[leader] != memory.keys[i]) {
          leader += args_.pages.kv_heads;
        }
        leader = leader < i && !equal(own, row(leader), split) ? i : leader;
      }
      memory.leaders[i] = split < own.splits() ? leader : kNothing;
    }
  }

  // Returns: true if both rows have the split in the same pages.
  TESSERA_DEVICE static bool equal(const ListedRow& one, const ListedRow& other, int32_t split) {
    const int32_t first = one.first_page(split);
    const int32_t end = one.end_page(split);
    bool same = one.capacity == other.capacity && one.split_tokens() == other.split_tokens();
    for (int32_t page = first; same && page < end; ++page) {
      same = one.page_ids[page] == other.page_ids[page];
    }
    return same;
  }

  // Rows that have a split in common, and the place of one of them.
  struct Group {
    int32_t before = 0;  // rows of the group before the row
    int32_t size = 0;
  };
  TESSERA_DEVICE Group group_of(int32_t index) const {
    const ListMemory& memory = shared<ListMemory>();
    const int32_t heads = args_.pages.kv_heads;
    Group group;
    if (index >= rows_ || memory.leaders[index] == kNothing) {
      return group;
    }
    for (int32_t i = index % heads; i < rows_; i += heads) {
      const bool same = memory.leaders[i] == memory.leaders[index];
      group.before += same && i < index ? 1 : 0;
      group.size += same ? 1 : 0;
    }
    return group;
  }

  // Lists a split of all rows. Returns: true if rows share it.
  TESSERA_DEVICE bool put_split(int32_t split) {
    const int32_t shared_before = counts_.shared;
    for (int32_t first = 0; first < rows_; first += threads()) {
      const int32_t index = first + thread();
      const Group group = group_of(index);
      const int32_t left = group.size - group.before;
      const int32_t count = group.before % fitting() != 0 ? 0 : left < fitting() ? left : fitting();
      OfWarps<int32_t>& totals = shared<ListMemory>().totals;
      const Place own = block_place(count == 1 ? 1 : 0, totals);
      const Place shared = block_place(count > 1 ? 1 : 0, totals);
      if (count == 1) {
        put_own(counts_.own + own.first, index, split * kSlicesOfSplit, 0);
      } else if (count > 1) {
        put_shared(counts_.shared + shared.first, index, split, count);
      }
      counts_.own += own.all;
      counts_.shared += shared.all;
    }
    return counts_.shared > shared_before;
  }

  // Lists the splits of all rows from `first_split` on, or their slices, each for its own row.
  TESSERA_DEVICE void put_rest(int32_t first_split) {
    for (int32_t first = 0; first < rows_; first += threads()) {
      const int32_t index = first + thread();
      int32_t items = 0;
      if (index < rows_) {
        const ListedRow own = row(index);
        items = counts_.slices == 1 ? own.slices() : own.splits();
      }
      const int32_t count = items > first_split ? (items - first_split) * blocks_ : 0;
      const Place place = block_place(count, shared<ListMemory>().totals);
      for (int32_t i = 0; i < count; ++i) {
        put_own(counts_.own + place.first + i, index, (first_split + i / blocks_) * counts_.slices,
                i % blocks_);
      }
      counts_.own += place.all;
    }
  }

  TESSERA_DEVICE void put_own(int32_t at, int32_t index, int32_t first_slice, int32_t block) const {
    const int32_t heads = args_.pages.kv_heads;
    SplitItem& to = *lists_.own(block_x(), at);
    to.kv_head = static_cast<uint16_t>(index % heads);
    to.first_head = static_cast<uint16_t>(block * kMaxTaskPairs);
    to.first_slice = static_cast<uint16_t>(first_slice);
    to.count = 1;
    to.queries[0] = static_cast<uint16_t>(index / heads);
  }
  // Lists the split for `count` rows of a group, from row `index` on.
  TESSERA_DEVICE void put_shared(int32_t at, int32_t index, int32_t split, int32_t count) const {
    const int32_t heads = args_.pages.kv_heads;
    const int32_t leader = shared<ListMemory>().leaders[index];
    SplitItem& to = *lists_.shared(block_x(), at);
    to.kv_head = static_cast<uint16_t>(index % heads);
    to.first_head = 0;
    to.first_slice = static_cast<uint16_t>(split * kSlicesOfSplit);
    to.count = static_cast<uint16_t>(count);
    for (int32_t i = index, put = 0; put < count; i += heads) {
      if (shared<ListMemory>().leaders[i] == leader) {
        to.queries[put++] = static_cast<uint16_t>(i / heads);
      }
    }
  }

  const PlanAttentionArgs& args_;
  const SequenceSpan* sequences_;
  const KvScoring* scorings_;
  const SplitLists& lists_;
  int32_t tokens_;
  int32_t blocks_;
  int32_t rows_;
  SplitCounts counts_ = {0, 0, kSlicesOfSplit};
};

// A block makes the list of one layer.
TESSERA_KERNEL(kMaxThreads)
list_kernel(PlanAttentionArgs args, const SequenceSpan* sequences, const KvScoring* scorings,
            SplitLists lists, ListShape shape, int64_t few) {
  LayerList(args, sequences, scorings, lists, shape).make(few);
}

}  // namespace

int64_t attention_plan_bytes(const StepLimits& limits, int32_t layers, int32_t kv_heads,
                             int32_t query_heads) {
  const ListShape largest{.sequences = listed_sequences(limits, kMaxListedRows / kv_heads),
                          .kv_heads = kv_heads,
                          .blocks = ListShape::blocks_of(query_heads / kv_heads),
                          .slots = max_splits(limits.context)};
  return largest.bytes(layers);
}

void plan_attention(const PlanAttentionArgs& args, Stream stream) {
  const KvPagesView& pages = args.pages;
  const ListShape shape =
      ListShape::of(args.sequences, pages, args.query_heads, std::ssize(args.plan));
  if (shape.splits == 0) {
    return;
  }
  TESSERA_CHECK(shape.bytes(pages.layers) <= std::ssize(args.plan), "attention: too small a plan");
  const int64_t few = args.divide_splits && shape.has_room_for_slices()
                          ? int64_t{kFewSplits} * limits(stream).multiprocessors
                          : 0;
  const int64_t threads = std::min(round_up(shape.rows(), kWarp), int64_t{kMaxThreads});
  launch(stream,
         {.grid_x = pages.layers,
          .threads = static_cast<int32_t>(threads),
          .shared_bytes = sizeof(ListMemory)},
         list_kernel, args, mirror(args.sequences, stream),
         args.scorings.empty() ? nullptr : mirror(args.scorings, stream),
         shape.in(args.plan, pages.layers), shape, few);
}

}  // namespace tessera::cuda
