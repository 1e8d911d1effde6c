#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/tiles/pair_block.h"

namespace tessera {

// Cuts the pairs of one (sequence, KV head) into blocks. No block crosses the border of a KV group
// of positions. `group` is the gqa_ratio: pair i is query row i / group and query head i % group,
// so positions ascend with i. `span` is not owned and must outlive this.
class BlockCut {
 public:
  BlockCut(const SequenceSpan& span, int32_t group)
      : span_(span),
        group_(group),
        first_rows_(std::min(span.count, kKvGroup - span.context % kKvGroup)),
        first_blocks_(blocks_of(first_rows_)),
        group_blocks_(blocks_of(kKvGroup)) {}

  int64_t blocks() const {
    const int32_t rest = span_.count - first_rows_;
    return first_blocks_ + rest / kKvGroup * group_blocks_ + blocks_of(rest % kKvGroup);
  }

  struct Block {
    int32_t group;  // KV group: position / kKvGroup
    int64_t first_pair;
    int32_t pairs;
  };
  Block block(int64_t index) const {
    const bool first = index < first_blocks_;
    const int64_t later = first ? 0 : (index - first_blocks_) / group_blocks_;
    const int64_t in_group = first ? index : (index - first_blocks_) % group_blocks_;
    const int64_t begin = first ? 0 : first_rows_ + later * kKvGroup;
    const int64_t end = first ? first_rows_ : std::min<int64_t>(begin + kKvGroup, span_.count);
    const int64_t first_pair = begin * group_ + in_group * PairBlock::kPairs;
    return {span_.closed_before() + (first ? 0 : 1 + static_cast<int32_t>(later)), first_pair,
            static_cast<int32_t>(std::min<int64_t>(PairBlock::kPairs, end * group_ - first_pair))};
  }

 private:
  int64_t blocks_of(int32_t rows) const {
    return div_ceil(int64_t{rows} * group_, PairBlock::kPairs);
  }

  const SequenceSpan& span_;
  int32_t group_;
  int32_t first_rows_;  // rows in the first row's KV group
  int64_t first_blocks_;
  int64_t group_blocks_;
};

}  // namespace tessera
