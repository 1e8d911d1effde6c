#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kv/kv_compression.h"
#include "kernels/kv/kv_page.h"
#include "kernels/kv/kv_pool.h"
#include "kernels/matrix/view.h"

namespace tessera {

// Ops of a step over the KV cache, in their order: store, attend, score.

// Batch rows of one sequence in a step: `count` new tokens. The first one is batch row `first_row`
// and has position `context` in the sequence.
struct SequenceSpan {
  int32_t slot = 0;       // selects the page tables and residual buffers
  int32_t first_row = 0;  // batch row
  int32_t count = 0;      // new tokens; 0: an unused last entry of a plan for Recording::start()
  int32_t context = 0;    // tokens stored before this step, not the maximum length
  KvTiers tiers;          // formats of its page-table rows
  // KvPolicy::newest_dense(): number of newest tokens, its own included, that a generated token at
  // least reads unquantised. 0: only those of its own group. If not 0, the residual buffer keeps
  // the newest kKvGroup tokens, each at its position modulo kKvGroup, and generated tokens are
  // computed one per step.
  int32_t newest = 0;
  int32_t prompt = 0;  // tokens of the prompt; tokens at positions >= `prompt` are generated
  // KvPolicy::read_tiles(): number of attention tiles that a generated token reads of each row's
  // closed tokens. 0: all of them. Generated tokens are computed one per step then.
  int32_t read_tiles = 0;

  // Returns: true if the query reads selected tiles only.
  constexpr bool selects() const { return read_tiles > 0 && count == 1 && context >= prompt; }
  // Returns: number of tokens at the end of the previous group that the query reads unquantised,
  // besides those of its own group. The residual buffer still holds them. 0 unless the span is one
  // generated token.
  constexpr int32_t older_dense() const {
    const int32_t own = context % kKvGroup + 1;
    return count == 1 && context >= prompt && context >= kKvGroup && newest > own ? newest - own
                                                                                  : 0;
  }
  // Returns: number of closed groups before and after kv_store, and the index of the last new
  // token's group. Group g has the positions [64 g, 64 g + 64).
  constexpr int32_t closed_before() const { return context / kKvGroup; }
  constexpr int32_t closed_after() const { return (context + count) / kKvGroup; }
  constexpr int32_t last_group() const { return (context + count - 1) / kKvGroup; }
};

// Largest step that an op must be able to serve. Scratch is sized by it once, at start.
struct StepLimits {
  int32_t tokens = 0;  // new tokens of all sequences
  int32_t sequences = 0;
  int32_t context = 0;   // maximum length of a sequence, in tokens
  bool selects = false;  // a sequence may read selected tiles (SequenceSpan::selects)
};

// Returns: the largest number of dense_groups() of a step. Two tokens of a sequence can be the end
// of one group and the start of the next, which makes one. Each further one takes 64 tokens.
constexpr int64_t max_dense_groups(const StepLimits& limits) {
  const int32_t crossings =
      limits.tokens / 2 < limits.sequences ? limits.tokens / 2 : limits.sequences;
  return crossings + (limits.tokens - 2 * crossings) / kKvGroup;
}

// Dense groups: those in the residual layout, in which a query reads its own group. The group of a
// span's last token is read from the slot's residual buffer. The span's earlier groups are read
// from scratch memory, KvStoreArgs::dense: one page in residual_layout for each (sequence, such
// group, KV head).
// Returns: number of groups of a span that are in scratch memory.
constexpr int32_t dense_groups(const SequenceSpan& span) {
  return span.last_group() - span.closed_before();
}

// Tables of a rotation: RopeArgs::cos and sin.
struct RopeTable {
  const float* cos = nullptr;  // [max_positions, rotary_dim / 2]
  const float* sin = nullptr;  // [max_positions, rotary_dim / 2]
};

// Rotates a step's queries and keys, as the op `rope` does.
struct StepRope {
  int32_t rotary_dim = 0;              // RopeArgs::rotary_dim; 0: nothing is rotated
  std::span<const int32_t> positions;  // [tokens]
  MatrixView<float> queries;           // [tokens, query_heads * head_dim], rotated in place
  RopeTable query_table;
  RopeTable key_table;
};

// The coordinates in which a layer's keys are stored: (key - centre) * scale, after RoPE. Queries
// are divided by the scale. So q . k changes by q . centre alone, which is the same for all keys.
// Softmax does not see it, so attention and scores need no other arithmetic. How frames are chosen:
// models/weights/key_frames.h.
// Requires: scales are powers of two, and one for the two channels of a pair that RoPE rotates. The
// model has no term beside q . k in its softmax.
struct KeyFrame {
  std::span<const float> centre;   // [kv_heads * head_dim]; empty: keys stay as they are
  std::span<const float> scale;    // [kv_heads * head_dim]; empty as `centre` is
  MatrixView<float> queries = {};  // [tokens, query_heads * head_dim], divided in place

  constexpr bool empty() const { return centre.empty(); }
  // Returns: 1 / scale, exactly: the exponent of a power of two turns around its bias.
  static constexpr float inverse(float scale) {
    return std::bit_cast<float>(0x7f000000u - std::bit_cast<uint32_t>(scale));
  }
};

// Returns: true if a frame has the shapes of a step.
constexpr bool fits(const KeyFrame& frame, const MatrixView<const float>& keys,
                    const KvPagesView& pages) {
  return frame.empty() ||
         (static_cast<int64_t>(frame.centre.size()) == keys.cols &&
          frame.scale.size() == frame.centre.size() && frame.queries.rows == keys.rows &&
          frame.queries.cols % (int64_t{pages.kv_heads} * pages.head_dim) == 0);
}

// Writes the new tokens' keys (after RoPE) and values. Tokens of a span's last group go to the
// residual buffer. Each earlier group is assembled in `dense`; its first tokens may come from the
// residual buffer.
// Every earlier group is *closed*, and so is the last one if it is full. To close a group is to
// encode it in the high tier's format at the end of each row's high tier, whose count grows by 64.
// If SequenceSpan::newest is not 0, the residual buffer keeps tokens of the previous group in the
// places that the last group has not reached.
// Rounds to nearest even. A value that a format cannot represent becomes its largest finite value.
// The same tokens give the same bytes, however they are divided into steps.
// Requires: kv_resize has allocated pages for the groups that close.
struct KvStoreArgs {
  MatrixView<const float> keys;    // [tokens, kv_heads * head_dim]
  MatrixView<const float> values;  // [tokens, kv_heads * head_dim]
  std::span<const SequenceSpan> sequences;
  KvPagesView pages;
  int32_t layer = 0;
  // Output: [sum of dense_groups over the sequences, kv_heads, residual_layout.page_bytes], 64-byte
  // aligned.
  std::span<std::byte> dense;
  // Needs Backend::applies_rope_in_store. `keys` are those before RoPE then, and stay as they are.
  StepRope rope = {};
  KeyFrame frame = {};
};

// Causal attention of the new tokens over their sequence's stored tokens, the new ones included.
// kv_store runs first: store, then attend. A query at position p reads, of its page-table row:
// - high tier: the closed groups before the group of p, without the last older_dense() tokens;
// - low tier: all tokens;
// - dense: the group of p up to p, from the residual buffer or from `dense`, and the older_dense()
//   tokens before that group, from the residual buffer.
//
// Prefill and decode are the same op. The arithmetic for one query depends only on its position, on
// the tokens of its page-table row, and on `newest`, `prompt` and `read_tiles` of its span. Tiles
// of 64 tokens are read in the order above, the dense tokens as one tile. Splits, i.e. runs of
// consecutive tiles whose borders depend only on the row's tokens, have an online softmax each and
// are merged in order. Splits have 16 tiles on the CPU, 8 or more on CUDA, where each has four
// slices that are merged first. The scalar oracle has one split. So results do not depend on how
// tokens are divided into steps, on the number of threads, or on the rest of the batch. The query
// heads of a KV head share one pass over its keys and values.
//
// A query of a span that selects() reads `read_tiles` tiles of each row's closed tokens, as if the
// row had no others. The first kWholeLayers layers read all. The tiles are the first and the last
// of each tier, and those of the highest rank. A query head estimates its attention on each tile by
// the sketches of its pages (kernels/kv/key_sketch.h). A tile's rank is the largest of the
// estimates of the KV head's query heads, each relative to the head's largest estimate of a tile.
// Equal ranks: the earlier tile. The choice therefore depends on the capacity of pages too.
//
// Page-table rows of several sequences may begin with the same pages (prefix blocks, forks). If
// these sequences have one new token each, a backend may read such pages once for all of them. The
// results are the same bit for bit.
//
// Codes are multiplied directly and never written back as floats. q . k = scale * (q . codes) +
// zero * sum(q), with q in two int8 parts, about 15 bits. sum p * v = sum (p * scale) * code + sum
// p * zero, with p * scale in two int8 parts for each tile.
struct AttentionArgs {
  MatrixView<const float> queries;  // [tokens, query_heads * head_dim], after RoPE
  std::span<const SequenceSpan> sequences;
  KvPagesView pages;
  int32_t layer = 0;
  int32_t query_heads = 0;  // a multiple of pages.kv_heads
  float scale = 0;          // usually 1 / sqrt(head_dim)
  // > 0: a query sees the last `sliding_window` positions only, and reads all as if `newest` and
  // `read_tiles` were 0. The high tier must then count every closed token, so that a token's index
  // in its page-table row is its position. Pages that all queries have passed may be missing.
  // `scorings` are empty.
  int32_t sliding_window = 0;
  std::span<const std::byte> dense;  // as kv_store filled it
  MatrixView<float> out;             // [tokens, query_heads * head_dim]
  // Output for kv_score, [tokens, query_heads]: log of the softmax denominator. No data: not
  // computed.
  MatrixView<float> log_sums;
  // One for each of `sequences`; empty: no sequence is scored.
  std::span<const KvScoring> scorings = {};
  // Output for kv_score, so that it need not multiply again: unnormalised attention probabilities
  // (CPU) or scaled logits (CUDA). It is written for each sequence i with
  // leaves_attention_weights(). Row i * kv_heads + h of this matrix belongs to KV head h. A row has
  // attention_weight_tile_floats() floats for each tile, in the order above. They begin with
  // [gqa_ratio, kAttentionTile] numbers, made from the scaled logit x = q . k * scale * log2(e).
  // The CPU stores 2^(x - maximum), relative to the running maximum at that tile, and after these
  // [gqa_ratio] maxima. CUDA stores x. Owned by the caller, one buffer for all layers. It may have
  // fewer rows than the step needs: kv_score multiplies for the other sequences, to the same bits.
  MatrixView<float> weights = {};  // [rows, attention_weight_row_floats()], 64-byte aligned
  // As plan_attention left it for this step. Empty if the backend has no such op.
  std::span<std::byte> plan = {};
  std::span<std::byte> scratch;  // Backend::attention_scratch_bytes(...), aligned as by `new`
  bool share_reads = true;       // false: sequences read shared pages separately, for comparison
};

// Plans the attention of a step once, for all layers: how rows are divided into work, and which
// sequences read the same pages. A backend without the op plans in `attention`.
// Requires: runs after the step's kv_resize, before all of its kv_store or after all of them.
// `attention` then has the same sequences, scorings, weights and share_reads.
struct PlanAttentionArgs {
  std::span<const SequenceSpan> sequences;
  std::span<const KvScoring> scorings = {};  // as of AttentionArgs
  MatrixView<float> weights = {};            // as of AttentionArgs; only its shape is read
  KvPagesView pages;
  int32_t query_heads = 0;
  int32_t sliding_window = 0;  // the smallest of the layers that have one; 0: none has
  bool share_reads = true;
  bool divide_splits = true;  // false: a split is one warp's work (CUDA), for comparison
  bool stored = false;        // kv_store has run
  std::span<std::byte> plan;  // output: Backend::attention_plan_bytes(...), aligned as by `new`
};

// Largest number of query heads of one KV head that kv_score supports.
inline constexpr int32_t kMaxScoredHeads = 48;

// Returns: floats of AttentionArgs::weights: of one tile, and of one matrix row for a sequence of
// `context` tokens. Each tier may end with a partly filled tile.
constexpr int64_t attention_weight_tile_floats(int32_t gqa_ratio) {
  return int64_t{kAttentionTile} * gqa_ratio + round_up(gqa_ratio, 16);
}
constexpr int64_t attention_weight_row_floats(int32_t context, int32_t gqa_ratio) {
  return (int64_t{context} / kAttentionTile + 3) * attention_weight_tile_floats(gqa_ratio);
}

// Creates the new tokens' token scores: a score of 0 and their position. Then adds to every token's
// score the attention received from this step's scored queries, as the policy's scorer defines it
// (kernels/kv/kv_scorers.h). All query heads of the token's KV head contribute.
//
// Runs after kv_store and attention. Sequences with leaves_attention_weights() use the weights that
// attention left. For other sequences it computes q . k again over the tokens that attention read,
// with the log_sums that attention left. Each token score receives its queries one by one in order
// of position. Scores therefore do not depend on the division of tokens into steps.
//
// With KvScoring::section, only the tokens of the section before the scored queries have scores.
// They are 0 before the first of these queries, and steps before it have KvScoring::token_scores
// false.
//
// If a policy's key score needs it, also adds |q| of the new tokens to KvPagesView::query_sums,
// over the query heads of each KV head.
//
// A scorer with kWeighsOutput divides the attention of a query by the root mean square of its row
// of `residual`.
struct KvScoreArgs {
  MatrixView<const float> queries;   // [tokens, query_heads * head_dim], after RoPE
  MatrixView<const float> log_sums;  // [tokens, query_heads], as attention left them
  std::span<const SequenceSpan> sequences;
  std::span<const KvScoring> scorings;   // one for each of `sequences`
  MatrixView<const float> weights = {};  // as attention left them; no rows: none were left
  // [tokens, hidden], the residual stream that enters the layer. Only scorers with kWeighsOutput
  // read it.
  MatrixView<const float> residual = {};
  KvPagesView pages;  // with token_scores
  int32_t layer = 0;
  int32_t query_heads = 0;
  float scale = 0;
  std::span<const std::byte> dense;  // as kv_store filled it
};

// Returns: true if sequence `i` has one new token and `weights` has matrix rows for it.
template <class Args>  // AttentionArgs, KvScoreArgs
constexpr bool has_attention_weight_rows(const Args& args, const SequenceSpan& sequence,
                                         int64_t i) {
  return sequence.count == 1 && (i + 1) * args.pages.kv_heads <= args.weights.rows;
}

// Returns: true if `pages` has entries for the scores of the step's tokens, or of the section.
constexpr bool has_room_for_scores(const KvPagesView& pages, const SequenceSpan& sequence,
                                   const KvScoring& scoring) {
  if (!scoring.token_scores) {
    return true;
  }
  return scoring.section > 0
             ? scoring.section <= pages.section_scores && scoring.begin <= sequence.context
             : pages.scores_all_tokens() &&
                   sequence.context + sequence.count < pages.row_token_scores;
}

// Returns: true if attention leaves weights of sequence `i` for kv_score. The sequence has one new
// token, and that query is scored. The scalar backend neither writes nor reads `weights`; its
// kv_score always multiplies.
template <class Args>
bool leaves_attention_weights(const Args& args, size_t i) {
  return !args.scorings.empty() && args.scorings[i].includes(args.sequences[i].context) &&
         has_attention_weight_rows(args, args.sequences[i], static_cast<int64_t>(i));
}

}  // namespace tessera
