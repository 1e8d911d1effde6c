#pragma once

#include <cfloat>

#include "kernels/cuda/simt/simt.h"

namespace tessera::cuda {

// Division of attention into work items, for host and device. A *pair* is one query token and one
// query head. A warp computes a block of pairs of one (sequence, KV head), all with positions in
// one group of 64. It reads the row's consecutive tiles of 64 tokens that those pairs see.
//
// A row has *splits*, and a split has *slices*. Both depend on the row's tokens alone. Each slice
// starts from an empty softmax state. A split's slices are merged in order, then the row's splits,
// by one formula. A warp computes all splits of a row (prompts, very large batches), one split
// (decode), or one slice (decode of so few rows that splits leave most of the GPU idle). The bits
// of a query's result therefore depend only on its position and its row's tokens.
inline constexpr int32_t kSlicesOfSplit = 4;  // the last split of a row may have fewer
inline constexpr int32_t kMinSplitTiles = 8;
inline constexpr int32_t kMaxSplits = 64;  // splits of a row
inline constexpr int32_t kWarpsOfBlock = 4;

// Largest number of splits for each multiprocessor with which a list has their slices. With more,
// slices gain less than their partial softmaxes cost (by decode_model.py, not measured).
inline constexpr int32_t kFewSplits = 8;

// Launches of attention with at most this many warps for each multiprocessor have blocks of one,
// which reach more of them.
inline constexpr int32_t kFewWarps = 8;

constexpr int32_t split_tiles(int32_t tiles) {
  const int32_t least = (tiles + kMaxSplits - 1) / kMaxSplits;
  const int32_t whole = (least + kSlicesOfSplit - 1) / kSlicesOfSplit * kSlicesOfSplit;
  return whole > kMinSplitTiles ? whole : kMinSplitTiles;
}
constexpr int32_t split_count(int32_t tiles) {
  return (tiles + split_tiles(tiles) - 1) / split_tiles(tiles);
}
constexpr int32_t slice_tiles(int32_t tiles) {
  return split_tiles(tiles) / kSlicesOfSplit;
}
constexpr int32_t slice_count(int32_t tiles) {
  return (tiles + slice_tiles(tiles) - 1) / slice_tiles(tiles);
}

// Partial softmax of one pair over a slice or more. Scratch holds [head_dim] values, then these
// fields, at addresses of 16 bytes.
struct PartialSums {
  float maximum;
  float sum;  // 0: the pair sees none of the tokens; readers skip the values
};
inline constexpr PartialSums kNoTokens{-FLT_MAX, 0};
constexpr int64_t partial_floats(int32_t head_dim) {
  return head_dim + 4;
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

// Values of a pair in four channels.
struct FourChannels {
  float of[4];

  TESSERA_DEVICE FourChannels divided(float divisor) const {
    return {{of[0] / divisor, of[1] / divisor, of[2] / divisor, of[3] / divisor}};
  }
};

}  // namespace tessera::cuda
