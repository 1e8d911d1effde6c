#pragma once

#include <algorithm>

#include "kernels/cuda/attention/queries.h"
#include "kernels/cuda/attention/work.h"

namespace tessera::cuda {

// Lists of the splits that a step's short sequences read: those with one new token (decode) or a
// few. There is one list for each layer. plan_attention writes them before the layers run, so that
// no warp of attention starts without work. An item is one split of one query token, or a split
// that several query tokens read from the same pages. These are tokens of one sequence, or of
// sequences with a common prefix. Hydragen and ChunkAttention also read a shared prefix once.
// If a step has so few splits that they leave most of the GPU idle, an item is one slice of one
// query token.

// Largest number of new tokens of a listed sequence.
inline constexpr int32_t kMaxListedTokens = 8;
// Largest number of rows, i.e. (query token, KV head), of a list. With more rows the GPU is busy
// anyway: one warp computes all splits of a row, and nothing is listed.
inline constexpr int32_t kMaxListedRows = 2047;

struct SplitItem {
  uint16_t kv_head;
  uint16_t first_head;   // of the KV head's query heads; with more of them than pairs of a warp, a
                         // split has an item for each block of heads
  uint16_t first_slice;  // of the row
  uint16_t count;        // query tokens that read it
  uint16_t queries[kMaxTaskPairs];  // sequence * ListShape::tokens + token of the sequence
};

struct SplitCounts {
  int32_t own;     // items of one query token
  int32_t shared;  // items of several
  int32_t slices;  // of an item: kSlicesOfSplit, or 1
};

// Lists of a step in memory: first the counts of all layers, then the items. `own` items of a layer
// are at the front of its part, `shared` items at the back.
struct SplitLists {
  SplitCounts* counts;  // [layers]
  SplitItem* items;     // [layers, layer_items]
  int64_t layer_items;

  // Returns: item of a layer.
  TESSERA_BOTH SplitItem* own(int32_t layer, int64_t index) const {
    return items + layer * layer_items + index;
  }
  TESSERA_BOTH SplitItem* shared(int32_t layer, int64_t index) const {
    return items + (layer + 1) * layer_items - 1 - index;
  }
};

// Returns: largest number of splits of a row of `tokens` tokens or fewer. Both tiers may end in a
// partly filled tile.
constexpr int32_t max_splits(int32_t tokens) {
  const int32_t splits = (tokens / kKvGroup + 3 + kMinSplitTiles - 1) / kMinSplitTiles;
  return splits > kMaxSplits ? kMaxSplits : splits;
}

// Shape of a step's lists, for host code: attention computes the one that plan_attention had.
struct ListShape {
  int32_t sequences = 0;
  int32_t tokens = 1;  // sequences with more new tokens are not listed
  int32_t kv_heads = 0;
  int32_t blocks = 1;  // blocks of a KV head's query heads
  int32_t splits = 0;  // of a row, at most; 0: the step lists nothing
  int32_t slots = 0;   // items of a row and block at most: splits, or slices if there is room

  // Sequences of several tokens are listed if the lists of all layers fit into `bytes`, and so are
  // slices.
  static ListShape of(std::span<const SequenceSpan> sequences, const KvPagesView& pages,
                      int32_t query_heads, int64_t bytes) {
    const auto with = [&](int32_t tokens) {
      ListShape shape{.sequences = static_cast<int32_t>(sequences.size()),
                      .kv_heads = pages.kv_heads,
                      .blocks = blocks_of(query_heads / pages.kv_heads)};
      int32_t longest = 0;
      for (const SequenceSpan& span : sequences) {
        if (span.count > 0 && span.count <= tokens) {
          longest = std::max(longest, span.context + span.count);
          shape.tokens = std::max(shape.tokens, span.count);
        }
      }
      const int32_t splits = longest > 0 ? max_splits(longest) : 0;
      shape.splits = splits > 1 && shape.rows() <= kMaxListedRows ? splits : 0;
      shape.slots = shape.splits;
      return shape;
    };
    const ListShape several = with(kMaxListedTokens);
    const ListShape shape =
        several.splits > 0 && several.bytes(pages.layers) <= bytes ? several : with(1);
    ListShape sliced = shape;
    sliced.slots *= kSlicesOfSplit;
    return sliced.bytes(pages.layers) <= bytes ? sliced : shape;
  }

  static constexpr int32_t blocks_of(int32_t gqa_ratio) {
    return (gqa_ratio + kMaxTaskPairs - 1) / kMaxTaskPairs;
  }
  TESSERA_BOTH int64_t rows() const { return int64_t{sequences} * tokens * kv_heads; }
  int64_t items() const { return rows() * blocks * slots; }
  bool has_room_for_slices() const { return slots > splits; }
  int64_t bytes(int32_t layers) const {
    return layers * (int64_t{sizeof(SplitCounts)} + items() * int64_t{sizeof(SplitItem)});
  }
  SplitLists in(std::span<std::byte> memory, int32_t layers) const {
    auto* counts = reinterpret_cast<SplitCounts*>(memory.data());
    return {counts, reinterpret_cast<SplitItem*>(counts + layers), items()};
  }
};

// Returns: sequences whose splits plans and scratch have room for. A step of few sequences has more
// room, for slices.
constexpr int32_t listed_sequences(const StepLimits& limits, int32_t most) {
  constexpr int32_t kLeast = 4 * kSlicesOfSplit;
  const int32_t sequences = limits.sequences > kLeast ? limits.sequences : kLeast;
  return sequences < most ? sequences : most;
}

// Returns: number of query tokens that one item can have; less than 2: nothing is shared.
constexpr int32_t queries_of_item(int32_t gqa_ratio) {
  return kMaxTaskPairs / gqa_ratio;
}

}  // namespace tessera::cuda
