#pragma once

#include <cfloat>

#include "kernels/cuda/simt/simt.h"

namespace tessera::cuda {

// How attention is cut, for host and device. A *pair* is a query row and a query head. A warp takes
// a block of pairs of one (sequence, KV head) whose positions are in one group of 64, and a *span*:
// consecutive tiles of 64 tokens of what those pairs see. Spans depend on the row's tokens alone,
// and each is computed from an empty state and merged in order, by one formula, whether one warp
// takes all of a row's spans (prompts; very large batches) or each its own (decode). So a query's
// bits depend on its position and its row's tokens alone.
inline constexpr int32_t kMinSplitTiles = 8;
inline constexpr int32_t kMaxSpans = 64;  // of a row
inline constexpr int32_t kWarpsOfBlock = 4;

// From so many rows (sequence, KV head) on a warp takes all spans: the GPU is busy as it is.
inline constexpr int32_t kWholeRows = 2048;

constexpr int32_t split_tiles(int32_t tiles) {
  const int32_t min = (tiles + kMaxSpans - 1) / kMaxSpans;
  return min > kMinSplitTiles ? min : kMinSplitTiles;
}
constexpr int32_t span_count(int32_t tiles) {
  return (tiles + split_tiles(tiles) - 1) / split_tiles(tiles);
}

constexpr int32_t split_end(int32_t first, int32_t tiles) {  // of one that begins at tile `first`
  const int32_t end = first + split_tiles(tiles);
  return end < tiles ? end : tiles;
}

// What of a pair's softmax one span gives, in scratch: [head_dim] values, then these.
struct PartialSums {
  float maximum;
  float sum;  // 0: it saw no token there, and the values are not written
};
constexpr int64_t partial_floats(int32_t head_dim) {
  return head_dim + 2;
}

struct PairBlock {
  int32_t group;  // of positions
  int32_t first_pair;
  int32_t pairs;
};

// The blocks of at most `size` pairs of a span of `count` tokens from position `context` on,
// `heads` query heads to the KV head; pair i is row i / heads, head i % heads.
struct PairBlocks {
  int32_t context;
  int32_t count;
  int32_t heads;
  int32_t size;

  constexpr int32_t first_rows() const {  // in the group of the first token
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

// A running softmax of one pair meets one more span's.
struct Merge {
  float maximum = -FLT_MAX;
  float sum = 0;
  float before = 0;  // factors of what was there, and of what comes
  float of_split = 0;

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
