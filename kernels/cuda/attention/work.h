#pragma once

#include <cfloat>

#include "kernels/cuda/simt/simt.h"

namespace tessera::cuda {

// Division of attention into work items, for host and device. A *pair* is one query token and one
// query head. A warp computes a block of pairs of one (sequence, KV head), all with positions in
// one group of 64. It covers one *split*: consecutive tiles of 64 tokens that those pairs see.
//
// Splits depend on the row's tokens alone. Each split starts from an empty softmax state, and
// splits are merged in order by one formula. This holds if one warp computes all splits of a row
// (prompts, very large batches) and if each split has its own warp (decode). The bits of a query's
// result therefore depend only on its position and its row's tokens.
inline constexpr int32_t kMinSplitTiles = 8;
inline constexpr int32_t kMaxSplits = 64;  // splits of a row
inline constexpr int32_t kWarpsOfBlock = 4;

// Launches of attention with at most this many warps for each multiprocessor have blocks of one,
// which reach more of them: a sequence of 8,192 tokens with 8 KV heads has 136 warps.
inline constexpr int32_t kFewWarps = 8;

constexpr int32_t split_tiles(int32_t tiles) {
  const int32_t min = (tiles + kMaxSplits - 1) / kMaxSplits;
  return min > kMinSplitTiles ? min : kMinSplitTiles;
}
constexpr int32_t span_count(int32_t tiles) {
  return (tiles + split_tiles(tiles) - 1) / split_tiles(tiles);
}

// Returns: end tile of the split that begins at tile `first`.
constexpr int32_t split_end(int32_t first, int32_t tiles) {
  const int32_t end = first + split_tiles(tiles);
  return end < tiles ? end : tiles;
}

// Partial softmax of one pair over one split. Scratch holds [head_dim] values, then these fields.
struct PartialSums {
  float maximum;
  float sum;  // 0: the pair sees no token of the split; readers skip the values
};
constexpr int64_t partial_floats(int32_t head_dim) {
  return head_dim + 2;
}

struct PairBlock {
  int32_t group;  // group of the pairs' positions
  int32_t first_pair;
  int32_t pairs;
};

// Divides a sequence span of `count` tokens from position `context` on into blocks of at most
// `size` pairs, each in one group. `heads`: gqa_ratio. Pair i is row i / heads, head i % heads.
struct PairBlocks {
  int32_t context;
  int32_t count;
  int32_t heads;
  int32_t size;

  constexpr int32_t first_rows() const {  // rows in the group of the first token
    const int32_t rows = kKvGroup - context % kKvGroup;
    return rows < count ? rows : count;
  }
  constexpr int32_t blocks_of(int32_t rows) const { return (rows * heads + size - 1) / size; }
  constexpr int32_t blocks() const {
    const int32_t rest = count - first_rows();
    return blocks_of(first_rows()) + rest / kKvGroup * blocks_of(kKvGroup) +
           blocks_of(rest % kKvGroup);
  }
  constexpr PairBlock block(int32_t index) const {
    const int32_t first_blocks = blocks_of(first_rows());
    const bool first = index < first_blocks;
    const int32_t later = first ? 0 : (index - first_blocks) / blocks_of(kKvGroup);
    const int32_t in_group = first ? index : (index - first_blocks) % blocks_of(kKvGroup);
    const int32_t begin = first ? 0 : first_rows() + later * kKvGroup;
    const int32_t whole_end = first ? first_rows() : begin + kKvGroup;
    const int32_t end = whole_end < count ? whole_end : count;
    const int32_t first_pair = begin * heads + in_group * size;
    const int32_t left = end * heads - first_pair;
    return {context / kKvGroup + (first ? 0 : 1 + later), first_pair, left < size ? left : size};
  }
};

// Running softmax of one pair. add() merges the partial softmax of the next split.
struct Merge {
  float maximum = -FLT_MAX;
  float sum = 0;
  float before = 0;    // factor of the values accumulated before the last add()
  float of_split = 0;  // factor of the values of the split that was added last

  TESSERA_DEVICE void add(const PartialSums& split) {
    const float larger = simt::max(maximum, split.maximum);
    before = simt::exp2(maximum - larger);
    of_split = simt::exp2(split.maximum - larger);
    sum = simt::fma(sum, before, split.sum * of_split);
    maximum = larger;
  }
  TESSERA_DEVICE float value(float value_before, float value_of_split) const {
    return simt::fma(value_before, before, value_of_split * of_split);
  }
  TESSERA_DEVICE float log_sum() const {
    constexpr float kLn2 = 0.693147180559945309f;
    return maximum * kLn2 + simt::log(sum);
  }
};

}  // namespace tessera::cuda
