#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/backend.h"
#include "kernels/cpu/attention/limits.h"
#include "kernels/half.h"

namespace tessera {

// How the SIMD attention is cut. A *pair* is one query row and one head of a group; pairs of the
// same KV head share its keys and values, whether they come from a group or from a prompt.
//
//   item    up to kPairs pairs of one (sequence, KV head) and one group of 64 positions, so that
//   all
//           see the same closed tokens; for decode one span of them
//   span    kSplitTiles tiles: a softmax of its own; spans are merged in ascending order
//   tile    kAttentionTile tokens of one tier, or the dense group: one step of the online softmax
//   step    up to kStep pairs: what the registers hold against one load of keys or values
//
// Tiles are counted through the high tier, the low tier and the dense group, and an addition
// belongs to one pair alone, so what is added to what, and in which order, depends on a query's
// position and on its row's tokens, and on nothing else.
inline constexpr int32_t kSplitTiles = 16;
inline constexpr int32_t kKeyTilesInTile = kAttentionTile / KvPageLayout::kKeyTile;

// A layout with the sizes that a tile's address needs, reckoned once for a step.
struct TileShape {
  TileShape() = default;
  explicit TileShape(const KvPageLayout& of)
      : layout(of),
        key_bytes(of.key_tile_bytes()),
        value_bytes(of.value_tile_bytes()),
        values(of.values_offset(0)),
        key_scales(of.key_scales_offset(0)),
        key_zeros(of.key_zeros_offset(0) - key_scales),
        value_scales(of.value_scales_offset(0) - key_scales),
        value_zeros(of.value_zeros_offset(0) - key_scales),
        page_tiles(of.capacity / KvPageLayout::kKeyTile) {}

  KvPageLayout layout;
  int64_t key_bytes = 0;    // of a key tile
  int64_t value_bytes = 0;  // of its tokens' values
  int64_t values = 0;       // offset of the first tile's in a page
  int64_t key_scales = 0;   // and of its key scales
  int64_t key_zeros = 0;    // from a tile's key scales to its other scales and zeros
  int64_t value_scales = 0;
  int64_t value_zeros = 0;
  int32_t page_tiles = 0;
};

// The tokens of one tile where they lie in their pages, 16 by 16.
struct KvTile {
  const TileShape* shape;
  const std::byte* keys[kKeyTilesInTile];
  const std::byte* values[kKeyTilesInTile];
  const std::byte* scales[kKeyTilesInTile];  // key scales, [kKeyTile] f16; of codes, sparse too
};

// The state of an item: one online softmax for each pair. Stands on the stack of its thread.
//
// Numbers that meet codes are 16-bit integers (code_step.h) in two parts, each with 4 numbers in 32
// bits, to be broadcast: an instruction set that multiplies bytes has the high bytes in the first
// part and the low ones in the second, one that multiplies 16-bit integers the first and third
// number in the first part and the others in the second.
struct PairBlock {
  static constexpr int32_t kStep = 6;
  static constexpr int32_t kPairs = 64;
  static constexpr int32_t kParts = 2;
  static constexpr int32_t kQueryQuads = kMaxHeadDim / 4;
  static constexpr int32_t kWeightQuads = kAttentionTile / 4;
  static constexpr float kLowest = -3.402823466e+38f;  // the maximum of nothing

  int32_t head_dim;
  int32_t pairs;
  int32_t first_seen[kPairs];  // positions a pair sees: [first_seen, end_seen)
  int32_t end_seen[kPairs];
  uint64_t visible[kPairs];  // bit i: the pair sees token i of the tile

  // Scaled so that the softmax is one of powers of 2.
  alignas(64) float queries[round_up(kPairs, kStep) * kMaxHeadDim];  // [steps, head_dim, kStep]
  alignas(64) int32_t query_codes[kPairs][kParts][kQueryQuads];
  float query_steps[kPairs];
  float query_sums[kPairs];

  // For sparse tiles (sparse_attention.h), a few pairs together, as floats and as integers of
  // query_steps.
  alignas(64) float token_queries[kPairs][kMaxHeadDim];
  alignas(64) int16_t token_codes[kPairs][kMaxHeadDim];
  alignas(64) f16 token_halves[kPairs][kMaxHeadDim];  // of half_steps (half_step.h)
  float half_steps[kPairs];
  // Where sparse keys, and then values, are made dense: a vector may reach beyond the last token.
  alignas(64) std::byte expanded[kAttentionTile * kMaxHeadDim * 2 + 512];
  alignas(64) std::byte widened[kAttentionTile * kMaxHeadDim * 2 + 64];
  std::byte all_kept[kMaxHeadDim / 8];  // a bitmap

  alignas(64) float maxima[kPairs];
  alignas(64) float corrections[kPairs];  // of this tile: 2^(old maximum - new)
  alignas(
      64) float weights[kPairs * kAttentionTile];  // [pairs, tokens of the tile]; scores at first
  alignas(64) int32_t weight_codes[kPairs][kParts][kWeightQuads];  // of weight * value scale
  alignas(64) uint32_t weight_halves[kPairs * kAttentionTile];     // an f16, twice
  alignas(64) float weight_steps[kPairs];
  alignas(64) float sums[kPairs * KvPageLayout::kKeyTile];  // [pairs, lanes] of weights
  alignas(
      64) float zeros[kPairs * KvPageLayout::kKeyTile];  // [pairs, lanes] of weight * value zero
  alignas(64) float values[kPairs * kMaxHeadDim];        // [pairs, head_dim], weighted sums
};
static_assert(std::is_trivially_default_constructible_v<PairBlock>,
              "an item would begin with writing hundreds of KiB");

struct TileStep {
  const KvTile& tile;
  const KvTile* next;  // read after this one, to be fetched meanwhile; null: none
  int32_t begin;       // tokens some pair sees: [begin, end) of the tile
  int32_t end;
  bool whole;             // every pair sees all of it
  float* left = nullptr;  // AttentionArgs::weights of the tile; null: nobody wants them
};

// What the query heads of one group at one position pay the first `tokens` tokens of a tile.
struct ReceivedAttention {
  const float* weights;    // [heads, kAttentionTile], relative to the maxima
  const float* maxima;     // [heads], and so many more that vectors may be read
  const float* log2_sums;  // likewise
  int32_t heads = 0;
  bool squares = false;
  float share = 0;  // of what they pay together
  int32_t tokens = 0;
};

// A finished softmax over some tokens: sum and values relative to 2^maximum.
struct Partial {
  float* maximum;
  float* sum;
  float* values;  // [head_dim]
};

inline void no_state(const PairBlock&) {}

// What an instruction set brings.
struct AttentionKernels {
  // One query times `factor`, in the form that tiles of floats (of codes; sparse ones) want it in.
  void (*load_query)(PairBlock& block, int32_t pair, const float* query, float factor);
  void (*load_query_codes)(PairBlock& block, int32_t pair, const float* query, float factor);
  void (*load_query_tokens)(PairBlock& block, int32_t pair, const float* query, float factor);
  // Scores, softmax and weighted values of one tile, for all pairs of the block.
  void (*add_tile)(PairBlock& block, const TileStep& step);
  // Of kv_score: as add_tile, but for values: block.weights are what attention leaves. Then what a
  // query paid each token: the sum over its heads of weight * 2^(maximum - log2_sum), or of its
  // square, times the share. Token i has mark i, or mark -i where marks descend.
  void (*weigh_tile)(PairBlock& block, const TileStep& step);
  void (*add_attention)(const ReceivedAttention& step, KvTokenScore* token_scores);
  void (*add_attention_descending)(const ReceivedAttention& step, KvTokenScore* token_scores);
  // One pair's softmax, complete but for the division.
  void (*finish)(const PairBlock& block, int32_t pair, const Partial& out);
  // into += from. Adding a partial of no tokens (maximum kLowest, all else 0) changes nothing.
  void (*merge)(const Partial& into, const Partial& from, int32_t head_dim);
  // values /= sum
  void (*normalise)(float* values, float sum, int32_t head_dim);
  // Around the calls of add_tile for a span, on their thread, where they need some of its state.
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
// avx512's with FP16, but for tiles of codes and many pairs.
AttentionKernels attention_kernels();
}  // namespace amx

}  // namespace tessera
