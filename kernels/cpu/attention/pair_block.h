#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cpu/attention/limits.h"

namespace tessera {

// How the SIMD attention is cut. A *pair* is one query row and one head of a group; pairs of the
// same KV head share its keys and values, whether they come from a group or from a prompt.
//
//   item    up to kPairs pairs of one (sequence, KV head), and for decode one span of its context
//   span    kAttentionSpan tokens: a softmax of its own; spans are merged in ascending order
//   tile    kAttentionTile tokens: one step of the online softmax
//   step    up to kStep pairs: what the registers hold against one load of keys or values
//
// Spans and tiles begin at fixed positions and an addition belongs to one pair alone, so what is
// added to what, and in which order, depends on a query's position and on nothing else.
inline constexpr int32_t kAttentionSpan = 1024;
inline constexpr int32_t kKeyTilesInTile = kAttentionTile / KvPageLayout::kKeyTile;

// The tokens of one tile where they lie in their pages.
struct KvTile {
  const std::byte* keys[kKeyTilesInTile];    // each [head_dim, kKeyTile]
  const std::byte* values[kKeyTilesInTile];  // each [kKeyTile, head_dim]
};

// The state of an item: one online softmax for each pair. Stands on the stack of its thread.
struct PairBlock {
  static constexpr int32_t kStep = 6;
  static constexpr int32_t kPairs = 48;
  static constexpr float kLowest = -3.402823466e+38f;  // the maximum of nothing

  KvFormat format;
  int32_t head_dim;
  int32_t pairs;
  int32_t first_seen[kPairs];  // positions a pair sees: [first_seen, end_seen)
  int32_t end_seen[kPairs];
  alignas(64) float queries[kPairs * kMaxHeadDim];  // [pairs / kStep, head_dim, kStep], scaled so
                                                    // that the softmax is one of powers of 2
  alignas(64) float maxima[kPairs];
  alignas(64) float corrections[kPairs];                    // of this tile: 2^(old maximum - new)
  alignas(64) float sums[kPairs * KvPageLayout::kKeyTile];  // [pairs, lanes] of weights
  alignas(64) float weights[kPairs * kAttentionTile];       // [pairs, tokens of the tile]
  alignas(64) float values[kPairs * kMaxHeadDim];           // [pairs, head_dim], weighted sums
  uint64_t visible[kPairs];  // bit i: the pair sees token i of the tile
};

struct TileStep {
  KvTile tile;
  const KvTile* next;  // read after this one; null: none
  int32_t begin;       // tokens some pair sees: [begin, end) of the tile
  int32_t end;
};

// A finished softmax over some tokens: sum and values relative to 2^maximum.
struct Partial {
  float* maximum;
  float* sum;
  float* values;  // [head_dim]
};

// What an instruction set brings.
struct AttentionKernels {
  // Scores, softmax and weighted values of one tile, for all pairs of the block.
  void (*add_tile)(PairBlock& block, const TileStep& step);
  // The sum of one pair's weights.
  float (*sum_of_weights)(const PairBlock& block, int32_t pair);
  // into += from. Adding a partial of no tokens (maximum kLowest, all else 0) changes nothing.
  void (*merge)(const Partial& into, const Partial& from, int32_t head_dim);
  // values /= sum
  void (*normalise)(float* values, float sum, int32_t head_dim);
};

namespace avx2 {
extern const AttentionKernels kAttentionKernels;
}
namespace avx512 {
extern const AttentionKernels kAttentionKernels;
}

}  // namespace tessera
