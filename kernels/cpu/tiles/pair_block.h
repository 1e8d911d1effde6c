#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/backend.h"
#include "kernels/cpu/pages/kv_tile.h"
#include "kernels/cpu/simd/limits.h"
#include "kernels/cpu/tiles/sketch_sums.h"
#include "kernels/matrix/half.h"

namespace tessera {

// Units of work of the SIMD attention. A *pair* is one query row and one query head. Pairs of the
// same KV head share its keys and values, both in decode (gqa_ratio heads) and in a prompt.
//
//   item    up to kPairs pairs of one (sequence, KV head) and one group of 64 positions, so all
//           see the same closed tokens; in decode one split of them
//   split   kSplitTiles tiles with a softmax of their own; splits are merged in ascending order
//   tile    kAttentionTile tokens of one tier, or the dense group: one step of the online softmax
//   step    up to kStep pairs: sums that registers hold against one load of keys or values
//
// Tiles are numbered through the high tier, the low tier and the dense group. An addition belongs
// to one pair only. The operands and the order of additions therefore depend only on a query's
// position and on its row's tokens.
inline constexpr int32_t kSplitTiles = 16;

// State of an item: one online softmax for each pair. It is on the stack of its thread.
//
// Numbers that are multiplied by codes are 16-bit integers (code_step.h) in two parts. In each
// part, a quad of 4 numbers takes 32 bits, to be broadcast. If the instruction set multiplies
// bytes, the first part has the high bytes and the second the low bytes. If it multiplies 16-bit
// integers, the first part has the first and third number and the second the others.
struct PairBlock {
  static constexpr int32_t kStep = 6;
  static constexpr int32_t kPairs = 64;
  static constexpr int32_t kParts = 2;
  static constexpr int32_t kQueryQuads = kMaxHeadDim / 4;
  static constexpr int32_t kWeightQuads = kAttentionTile / 4;
  static constexpr float kLowest = -3.402823466e+38f;  // maximum before any token

  int32_t head_dim;
  int32_t pairs;
  int32_t first_seen[kPairs];  // a pair sees positions [first_seen, end_seen)
  int32_t end_seen[kPairs];
  uint64_t visible[kPairs];  // bit i: the pair sees token i of the tile

  // Queries, scaled so that the softmax is one of powers of 2.
  alignas(64) float queries[round_up(kPairs, kStep) * kMaxHeadDim];  // [steps, head_dim, kStep]
  alignas(64) int32_t query_codes[kPairs][kParts][kQueryQuads];
  float query_steps[kPairs];
  float query_sums[kPairs];
  // The queries that query_codes come from, [head_dim] each, not owned. They are read again when a
  // tile needs codes of rotated queries after plain ones, or the other way round (rotated_pairs.h).
  const float* query_rows[kPairs];
  bool rotated_codes;
  bool rotated_values;  // `values` are sums of rotated values

  // Queries for sparse tiles (sparse_attention.h), a few pairs interleaved: as floats, and as
  // integers of token_steps.
  alignas(64) float token_queries[kPairs][kMaxHeadDim];
  alignas(64) int16_t token_codes[kPairs][kMaxHeadDim];
  alignas(64) f16 token_halves[kPairs][kMaxHeadDim];  // multiples of half_steps (half_step.h)
  float token_steps[kPairs];
  float half_steps[kPairs];
  // Buffer in which sparse keys, then values, are expanded. Its end is padded, because a vector may
  // reach beyond the last token.
  alignas(64) std::byte expanded[kAttentionTile * kMaxHeadDim * 2 + 512];
  alignas(64) std::byte widened[kAttentionTile * kMaxHeadDim * 2 + 64];
  std::byte all_kept[kMaxHeadDim / 8];  // bitmap of all channels

  alignas(64) float maxima[kPairs];
  alignas(64) float corrections[kPairs];  // for this tile: 2^(old maximum - new)
  // [pairs, tokens of the tile]: scores, then weights
  alignas(64) float weights[kPairs * kAttentionTile];
  alignas(64) int32_t weight_codes[kPairs][kParts][kWeightQuads];  // weight * value scale
  alignas(64) uint32_t weight_halves[kPairs * kAttentionTile];     // one f16, twice
  alignas(64) float weight_steps[kPairs];
  alignas(64) float sums[kPairs * KvPageLayout::kKeyTile];  // [pairs, lanes] weights
  // [pairs, lanes] weight * value zero
  alignas(64) float zeros[kPairs * KvPageLayout::kKeyTile];
  alignas(64) float values[kPairs * kMaxHeadDim];  // [pairs, head_dim] weighted sums
};
static_assert(std::is_trivially_default_constructible_v<PairBlock>,
              "an item would begin with writing hundreds of KiB");

// One tile for all pairs of a block. Not owned.
struct TileStep {
  const KvTile& tile;
  const KvTile* next;  // read after this one, prefetched meanwhile; null: none
  int32_t begin;       // some pair sees tokens [begin, end) of the tile
  int32_t end;
  bool whole;             // every pair sees the whole tile
  float* left = nullptr;  // AttentionArgs::weights of the tile; null: not written
};

// Attention that the first `tokens` tokens of a tile receive from one position, over the query
// heads of one KV head. Pointers are not owned.
struct ReceivedAttention {
  const float* weights;    // [heads, kAttentionTile], relative to the maxima
  const float* maxima;     // [heads], padded to whole vectors
  const float* log2_sums;  // likewise
  int32_t heads = 0;
  KvScorer scorer = KvScorer::none;
  int32_t tokens = 0;
};

// Finished softmax over some tokens. Sum and values are relative to 2^maximum. Not owned.
struct Partial {
  float* maximum;
  float* sum;
  float* values;  // [head_dim]
};

inline void no_state(const PairBlock&) {}

// Attention kernels of one instruction set. Nothing is allocated, and there are no errors.
// Requires, for all kernels of a block:
//   - the CPU has the instruction set (kernels/cpu/isa.h),
//   - block.head_dim and block.pairs are set, and block.maxima, sums and values are those of no
//     tokens (kLowest and 0) before the first tile,
//   - every pair is loaded in each form that its tiles read, and block.visible is that of the tile.
struct AttentionKernels {
  // Stores one query times `factor` in `block`, in the form that tiles of floats (codes; sparse
  // tokens) read. Requires: query: [head_dim]; 0 <= pair < block.pairs.
  void (*load_query)(PairBlock& block, int32_t pair, const float* query, float factor);
  void (*load_query_codes)(PairBlock& block, int32_t pair, const float* query, float factor);
  void (*load_query_tokens)(PairBlock& block, int32_t pair, const float* query, float factor);
  // Computes scores, softmax and weighted values of one tile, for all pairs of the block.
  // Requires: step.tile has as many readable bytes as its shape states, also where tokens are
  // missing; begin_tiles() was called on this thread.
  void (*add_tile)(PairBlock& block, const TileStep& step);
  // For kv_score: add_tile without the values. block.weights then equals the weights that attention
  // writes to AttentionArgs::weights.
  void (*weigh_tile)(PairBlock& block, const TileStep& step);
  // Adds the attention that each token received from a query, as the scorer defines it
  // (kernels/kv/kv_scorers.h). Each head has a weight and the factor 2^(maximum - log2_sum). Token
  // i has token score i, or -i for the descending variant.
  // Requires: step.tokens <= kAttentionTile token scores.
  void (*add_attention)(const ReceivedAttention& step, KvTokenScore* token_scores);
  void (*add_attention_descending)(const ReceivedAttention& step, KvTokenScore* token_scores);
  // Writes the softmax of one pair, complete except for the division. out.values: [head_dim].
  void (*finish)(const PairBlock& block, int32_t pair, const Partial& out);
  // into += from. A partial of no tokens (maximum kLowest, all else 0) changes nothing.
  void (*merge)(const Partial& into, const Partial& from, int32_t head_dim);
  // values /= sum. Requires: values: [head_dim]; sum > 0.
  void (*normalise)(float* values, float sum, int32_t head_dim);
  // As rotate() of kernels/kv/rotation.h.
  void (*rotate)(float* channels, int32_t head_dim);
  SketchKernel sketch;
  // Called before and after the add_tile calls of a split, on their thread, for kernels that need
  // thread state.
  void (*begin_tiles)(const PairBlock& block) = no_state;
  void (*end_tiles)(const PairBlock& block) = no_state;
};

namespace avx2 {
extern const AttentionKernels kAttentionKernels;
}
namespace avx512 {
extern const AttentionKernels kAttentionKernels;
extern const AttentionKernels kFp16AttentionKernels;
}  // namespace avx512
namespace amx {
// The avx512 kernels with FP16, except for tiles of codes with many pairs.
AttentionKernels attention_kernels();
}  // namespace amx

}  // namespace tessera
