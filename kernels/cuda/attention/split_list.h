#pragma once

#include <algorithm>

#include "kernels/cuda/attention/queries.h"
#include "kernels/cuda/attention/work.h"

namespace tessera::cuda {

// Lists of the splits that a step's decoding sequences read, one list for each layer. plan_attention
// writes them before the layers run, so that no warp of attention starts without work. An item is
// one split of one row, or one split that several rows begin with: the same pages at the same
// place. Hydragen and ChunkAttention also read a shared prefix once for its sequences.

// Largest number of rows, i.e. (sequence, KV head), of a list. With more rows the GPU is busy
// anyway: one warp computes all splits of a row, and nothing is listed.
inline constexpr int32_t kMaxListedRows = 2047;

struct SplitItem {
  uint16_t kv_head;
  uint16_t split;
  uint16_t count;                     // sequences that read it
  uint16_t sequences[kMaxTaskPairs];  // indices in the step's plan
};

struct SplitCounts {
  int32_t own;     // items of one sequence
  int32_t shared;  // items of several
};

// Lists of a step in memory: first the counts of all layers, then the items. `own` items of a layer
// are at the front of its part, `shared` items at the back.
struct SplitLists {
  SplitCounts* counts;  // [layers]
  SplitItem* items;     // [layers, layer_items]
  int64_t layer_items;

  TESSERA_BOTH const SplitItem& own(int32_t layer, int32_t index) const {
    return items[layer * layer_items + index];
  }
  TESSERA_BOTH const SplitItem& shared(int32_t layer, int32_t index) const {
    return items[(layer + 1) * layer_items - 1 - index];
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
  int32_t rows = 0;
  int32_t splits = 0;  // of a row, at most; 0: the step lists nothing

  static ListShape of(std::span<const SequenceSpan> sequences, int32_t kv_heads) {
    int32_t longest = 0;
    for (const SequenceSpan& span : sequences) {
      longest = span.count == 1 ? std::max(longest, span.context + 1) : longest;
    }
    const int64_t rows = std::ssize(sequences) * kv_heads;
    const int32_t splits = longest > 0 ? max_splits(longest) : 0;
    return rows <= kMaxListedRows && splits > 1 ? ListShape{static_cast<int32_t>(rows), splits}
                                                : ListShape{};
  }
  int64_t items() const { return int64_t{rows} * splits; }
  int64_t bytes(int32_t layers) const {
    return layers * (int64_t{sizeof(SplitCounts)} + items() * int64_t{sizeof(SplitItem)});
  }
  SplitLists in(std::span<std::byte> memory, int32_t layers) const {
    auto* counts = reinterpret_cast<SplitCounts*>(memory.data());
    return {counts, reinterpret_cast<SplitItem*>(counts + layers), items()};
  }
};

// Returns: number of sequences that one item can have; less than 2: nothing is shared.
constexpr int32_t sequences_of_item(int32_t gqa_ratio) {
  return kMaxTaskPairs / gqa_ratio;
}

}  // namespace tessera::cuda
