#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/device_memory.h"
#include "kernels/half.h"
#include "kernels/kv_page.h"
#include "kernels/kv_policy.h"
#include "kernels/kv_pool.h"
#include "kernels/sampling.h"
#include "kernels/view.h"
#include "kernels/weight.h"

namespace tessera {

class Recording;  // kernels/recording.h
struct RecordArgs;

// Execution context of an op: a ThreadPool* for the CPU backend, a cuda::CudaStream* for CUDA.
// Last parameter of every op; there is no ambient stream. Not owned.
struct Stream {
  void* handle = nullptr;
};

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

struct EmbedArgs {
  std::span<const int32_t> tokens;    // [tokens], each in [0, table.rows)
  MatrixView<const bf16> table;       // [vocab, hidden]; no data if `table_f32` has
  MatrixView<const float> table_f32;  // [vocab, hidden]
  MatrixView<float> out;              // [tokens, hidden]
};

struct RmsNormArgs {
  MatrixView<const float> in;     // [tokens, hidden]
  std::span<const float> weight;  // [hidden]
  float epsilon = 1e-5f;
  MatrixView<float> out;  // [tokens, hidden]; may alias `in`
};

// out = in * weight^T (+ bias) (+ out if `accumulate`). Batch-invariant: a batch row's result does
// not depend on the number of rows, because the sum over inputs has one fixed order per ISA.
// Deterministic serving depends on this.
struct LinearArgs {
  MatrixView<const float> in;  // [tokens, weight.cols]
  const PackedWeight* weight = nullptr;
  std::span<const float> bias;   // [weight.rows] or empty
  bool accumulate = false;       // adds to `out`: fuses the residual add
  MatrixView<float> out;         // [tokens, weight.rows]
  std::span<std::byte> scratch;  // for activations: Backend::linear_scratch_bytes(tokens, cols)
};

// Rotates q and k in place. The pairs are (i, i + head_dim / 2), as in Hugging Face's layout.
struct RopeArgs {
  MatrixView<float> heads;             // [tokens, heads * head_dim]
  std::span<const int32_t> positions;  // [tokens]
  const float* cos = nullptr;          // [max_positions, head_dim / 2]
  const float* sin = nullptr;          // [max_positions, head_dim / 2]
  int32_t head_dim = 0;
};

struct SiluMulArgs {
  MatrixView<const float> gate_up;  // [tokens, 2 * width]: gate, then up
  MatrixView<float> out;            // [tokens, width] = silu(gate) * up
};

// Allocates and releases the pages of page-table rows (one for each layer and KV head of a slot).
// First, every row of the `released` slots is emptied. Then every row of the `grown` slots gets the
// pages it lacks, so one call can reuse released pages.
// One pass over the circular free list serves all rows of all these slots. A prefix sum over the
// rows' page counts gives each row its place in the list (LeanKV, section 5.2). A page returns to
// the free list when its last owner releases it.
// Requires: enough free pages after the releases; room in each grown row between its high pages,
// which grow from the left end, and its low pages, which grow from the right end.
struct KvResizeArgs {
  KvPool pool;
  std::span<const int32_t> released;  // slots
  std::span<const KvGrowth> grown;    // at most one for each slot
  // Output: pages taken by each entry of `grown`. Host memory, not owned. It is written by the time
  // the host next waits for the stream, and must stay valid until then. Empty: not reported.
  std::span<int32_t> taken = {};
};

// Shares the pages of one prompt between sequences. A full page gets one more owner. A partly
// filled page, which both sequences would write, is copied at once, and so is the residual buffer.
// Requires: targets without tokens; free pages for the copies, at most one for each tier of a row.
// A source has two tiers if it began with demoted prefix blocks.
struct KvForkArgs {
  KvPool pool;
  std::span<const KvFork> forks;
};

// kv_swap_out copies pages, residual buffers, token scores and query sums of a slot to host memory.
// The slot keeps them; the caller releases it. kv_swap_in copies them back into a slot without
// tokens, and takes as many pages as the rows need. Tokens return to the same places in their rows,
// so results computed from them have the same bits.
// Requires: kv_snapshot_bytes() bytes of host memory; for kv_swap_in, enough free pages.
struct KvSnapshotArgs {
  KvPool pool;
  KvSnapshot snapshot;         // names the slot
  std::span<std::byte> bytes;  // the copy; kv_swap_in only reads it
};

// Makes prefix blocks from pages of slots (KvCache::insert uses it). Each page gets one more owner,
// and so stays in use when the slot is released.
// Requires: full pages, whose tokens are as kv_store wrote them (not changed by kv_compress);
// handles of blocks that hold no pages.
struct KvShareArgs {
  KvPool pool;
  std::span<const KvShare> shares;
};

// Lets slots begin with the tokens of prefix blocks. Each page gets one more owner, and the token
// counts of the rows grow. Token scores, if the pool has them, are set to the tokens' positions and
// a score of 0. Takes no page from the free list.
// Requires: slots without tokens; room in each row between its high pages and its low pages.
struct KvAttachArgs {
  KvPool pool;
  std::span<const KvAttachment> attachments;
};

// Empties prefix blocks. A page returns to the free list when its last owner releases it.
// Requires: each handle's block holds pages.
struct KvEvictArgs {
  KvPool pool;
  std::span<const int32_t> handles;
};

// Demotes whole prefix blocks: encodes them again in a format with fewer bytes, in place. (Single
// tokens of a slot are demoted by kv_compress.) A token's codes (or floats) are decoded to f32 and
// quantised again. Pages that become empty return to the free list.
// Requires: pages that no page-table row and no other prefix block holds; a target format of codes,
// or a sparse one, whose pages hold at least as many tokens.
struct KvDemoteArgs {
  KvPool pool;
  std::span<const PrefixBlock> prefix_blocks;  // with their current formats
  uint8_t tier = 0;                            // target format: index into KvPagesView::layouts
  std::span<std::byte> scratch;                // Backend::kv_demote_scratch_bytes(...)
};

// Dense (unquantised) groups. A query reads its own group unquantised. The group of a span's last
// token is read from the slot's residual buffer. The span's earlier groups are read from scratch
// memory, KvStoreArgs::dense: one page in residual_layout for each (sequence, such group, KV head).
// Returns: number of groups of a span that are in scratch memory.
constexpr int32_t dense_groups(const SequenceSpan& span) {
  return span.last_group() - span.closed_before();
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
};

inline constexpr int32_t kAttentionTile = kKvGroup;  // tokens

// Selects the scored queries of a sequence: those whose attention is added to its token scores.
struct KvScoring {
  // True if the sequence's policy needs token scores; otherwise kv_score skips the sequence.
  bool token_scores = false;
  KvScorer scorer = KvScorer::none;
  int32_t begin = 0;  // queries at positions [begin, end) are scored
  int32_t end = 0;
  // True if the policy's key score needs KvPagesView::query_sums.
  bool query_sums = false;

  // Returns: true if the query at `position` is scored.
  constexpr bool includes(int32_t position) const {
    return token_scores && begin <= position && position < end;
  }
};

// Returns: the scoring of a sequence with `policy` and a prompt of `prompt_tokens` tokens.
KvScoring scoring_of(const KvPolicy& policy, int32_t prompt_tokens);

// Causal attention of the new tokens over their sequence's stored tokens, the new ones included.
// kv_store runs first: store, then attend. A query at position p reads, of its page-table row:
// - high tier: the closed groups before the group of p, without the last older_dense() tokens;
// - low tier: all tokens;
// - dense: the group of p up to p, from the residual buffer or from `dense`, and the older_dense()
//   tokens before that group, from the residual buffer.
//
// Prefill and decode are the same op. The arithmetic for one query depends only on its position, on
// the tokens of its page-table row, and on `newest` and `prompt` of its span. Tiles of 64 tokens
// are read in the order above, the dense tokens as one tile. Splits, i.e. runs of consecutive tiles
// whose borders depend only on the row's tokens, have an online softmax each and are merged in
// order. Splits have 16 tiles on the CPU, 8 or more on CUDA; the scalar oracle has one split.
// Results therefore do not depend on how tokens are divided into steps, on the number of threads,
// or on the rest of the batch. The query heads of a KV head share one pass over its keys and
// values.
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
  // > 0: a query sees the last `sliding_window` positions only. The high tier must then hold every
  // closed token, so that a token's index in its page-table row is its position.
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
  std::span<std::byte> scratch;    // Backend::attention_scratch_bytes(...), aligned as by `new`
  bool share_reads = true;         // false: sequences read shared pages separately, for comparison
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
// score the attention received from this step's scored queries: the probability, or its square for
// `squares`. All query heads of the token's KV head contribute: `mean` and `sum` add the mean over
// these heads, `squares` adds their sum. `mean` and `sum` differ only later: kv_compress divides a
// score of `mean` by the number of scored queries after the token.
//
// Runs after kv_store and attention. Sequences with leaves_attention_weights() use the weights that
// attention left. For other sequences it computes q . k again over the tokens that attention read,
// with the log_sums that attention left. Each token score receives its queries one by one in order
// of position. Scores therefore do not depend on the division of tokens into steps.
//
// If a policy's key score needs it, also adds |q| of the new tokens to KvPagesView::query_sums,
// over the query heads of each KV head.
struct KvScoreArgs {
  MatrixView<const float> queries;   // [tokens, query_heads * head_dim], after RoPE
  MatrixView<const float> log_sums;  // [tokens, query_heads], as attention left them
  std::span<const SequenceSpan> sequences;
  std::span<const KvScoring> scorings;   // one for each of `sequences`
  MatrixView<const float> weights = {};  // as attention left them; no rows: none were left
  KvPagesView pages;                     // with token_scores
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

// Returns: true if attention leaves weights of sequence `i` for kv_score. The sequence has one new
// token, and that query is scored. The scalar backend neither writes nor reads `weights`; its
// kv_score always multiplies.
template <class Args>
bool leaves_attention_weights(const Args& args, size_t i) {
  return !args.scorings.empty() && args.scorings[i].includes(args.sequences[i].context) &&
         has_attention_weight_rows(args, args.sequences[i], static_cast<int64_t>(i));
}

// One sequence to compress by `policy` (demote and drop tokens), in all layers and KV heads.
struct KvCompression {
  int32_t slot = 0;
  KvTiers tiers;
  KvPolicy policy;     // valid by policy_error(), with a lossy rule
  int32_t tokens = 0;  // stored tokens, the open group included
  int32_t prompt_tokens = 0;
  // Positions below were evaluated by an earlier call. 0 in the first call and after a hand-over.
  int32_t evaluated = 0;
  // True in the first call only: the prompt's scores are complete and are pooled (score_pool).
  bool pool_scores = false;
  // Returns: `evaluated` for the next call: the position at which the recent groups begin.
  constexpr int32_t evaluated_after() const {
    const int32_t groups = tokens / kKvGroup - policy.recent;
    return groups > 0 ? groups * kKvGroup : 0;
  }
};

// Result for one sequence, over all layers and KV heads.
struct KvCompressed {
  int64_t pages_freed = 0;  // returned minus taken pages; at least -(layers * kv_heads)
  int64_t low_pages = 0;    // pages of its low tier after the call
  int64_t demoted = 0;      // tokens, counted for each layer and KV head
  int64_t dropped = 0;
};

// Compresses sequences, in place. With the rule `budget`, the policy's allocator first divides the
// budget of tokens over the sequence's page-table rows. Then the rule decides about the tokens of
// each row, separately for each layer and KV head:
// - Demoted tokens are decoded and encoded again in the low tier's format, at the low tier's end.
//   Keys for a sparse low tier keep the channels that rank highest by the policy's key_score.
// - Dropped tokens are removed.
// - Gaps in a tier are filled with the tier's last tokens, copied unchanged with their token
//   scores.
//
// The work is therefore proportional to the changes. A token's place in its row no longer implies
// its position; its token score holds the position. Pages that end up empty return to the free
// list, with one prefix sum for all rows.
//
// The rule evaluates tokens once they have left the recent groups, kKvGroup at a time: positions
// [evaluated, evaluated_after()) are new to it. Each rule has its own criterion for the older ones
// (KvRule; LeanKV's Algorithm 1: one victim for each token that enters a tier).
//
// In each tier, everything up to the end of its last page with several owners stays unchanged.
//
// Requires: if the policy has a low tier, layers * kv_heads free pages for each sequence (a row may
// need a page before it frees one, and may end with one page more); tokens <
// pages.row_token_scores; kv_score has run in every step that stored tokens of this slot (attached
// prefix tokens have a score of 0); for key_score output_aware, kv_score has seen every query of
// the newest closed group and the open one.
struct KvCompressArgs {
  KvPool pool;
  std::span<const KvCompression> sequences;
  std::span<KvCompressed> results;  // one for each of `sequences`
  std::span<std::byte> scratch;     // Backend::kv_compress_scratch_bytes(...), 64-byte aligned
};

// Upper bounds for one call of `sample`. Scratch is sized by them once, at start.
struct SampleLimits {
  int32_t rows = 0;
  int32_t vocab = 0;    // <= kMaxSampledVocab
  int32_t changes = 0;  // sum over all rows
};

// Chooses the next token of each logits row (kernels/sampling.h). `rows` and `changes` belong to
// the step's plan, so they are in host memory; `logits` and `sampled` are in the backend's memory.
// Logits are modified during the call and restored. A row's token depends only on that row.
struct SampleArgs {
  MatrixView<float> logits;              // [any, vocab]
  std::span<const SampleRow> rows;       // at most one for each row of `logits`
  std::span<const LogitChange> changes;  // concatenated changes of all rows
  std::span<SampledToken> sampled;       // one for each of `rows`
  std::span<std::byte> scratch;          // Backend::sample_scratch_bytes(...), 64-byte aligned
};

// Largest step that an op must be able to serve. Scratch is sized by it once, at start.
struct StepLimits {
  int32_t tokens = 0;  // new tokens of all sequences
  int32_t sequences = 0;
  int32_t context = 0;  // maximum length of a sequence, in tokens
};

// Returns: the largest number of dense_groups() of a step. Two tokens of a sequence can be the end
// of one group and the start of the next, which makes one. Each further one takes 64 tokens.
constexpr int64_t max_dense_groups(const StepLimits& limits) {
  const int32_t crossings =
      limits.tokens / 2 < limits.sequences ? limits.tokens / 2 : limits.sequences;
  return crossings + (limits.tokens - 2 * crossings) / kKvGroup;
}

// Table of one backend's functions: the ops (from `embed` on), the sizes of their scratch memory,
// and names. A backend fills it in one place. Tests cover every op of it, and kernels/op_cost.h
// states the cost of each op. Ops allocate nothing and keep no state.
// Errors: arguments that an op cannot serve are a bug of the caller, because the supported
// configurations are checked when a model loads.
struct Backend {
  const char* name;  // "cpu" or "cuda"
  const char* isa;   // "scalar", "avx2", "avx512", "avx512_fp16", "amx"; CUDA: "sm_80"

  // Returns: bytes of a packed weight; 0 if there are no kernels for weights of that format.
  int64_t (*packed_weight_bytes)(WeightFormat format, int64_t rows, int64_t cols);
  // Packs rows [first_row, first_row + source.rows) of `weight`. Rows may come in any order and in
  // pieces, so a checkpoint is never held twice.
  // Requires: pieces that start at multiples of kPackRows.
  void (*pack_weight)(MatrixView<const float> source, int64_t first_row,
                      const PackedWeight& weight);
  int64_t (*linear_scratch_bytes)(int64_t tokens, int64_t cols);
  int64_t (*attention_scratch_bytes)(const StepLimits& limits, int32_t query_heads,
                                     int32_t head_dim);
  int64_t (*kv_compress_scratch_bytes)(const KvPagesView& pages, Stream);
  int64_t (*kv_demote_scratch_bytes)(const KvPagesView& pages, Stream);
  int64_t (*sample_scratch_bytes)(const SampleLimits& limits, Stream);

  // Called once on the thread that will call the ops. The CPU backend pins it beside the stream's
  // own threads; CUDA makes the device current.
  void (*attach_thread)(Stream);

  // Memory of views, pools, weights and scratch. Null: host memory. The parts of a step's plan that
  // ops read (tokens, positions, sequences ...) are host memory for every backend. Not owned.
  const DeviceMemory* memory = nullptr;
  // Returns: true if the ops serve pages of that format. Null: every format that is_supported().
  bool (*serves_pages)(KvFormat format, int32_t head_dim) = nullptr;
  // Records ops to be started together later (kernels/recording.h). Null: ops are called each time.
  std::unique_ptr<Recording> (*record)(const RecordArgs&, Stream) = nullptr;

  void (*embed)(const EmbedArgs&, Stream);
  void (*rms_norm)(const RmsNormArgs&, Stream);
  void (*linear)(const LinearArgs&, Stream);
  void (*rope)(const RopeArgs&, Stream);
  void (*silu_mul)(const SiluMulArgs&, Stream);
  void (*kv_resize)(const KvResizeArgs&, Stream);
  void (*kv_fork)(const KvForkArgs&, Stream);
  void (*kv_swap_out)(const KvSnapshotArgs&, Stream);
  void (*kv_swap_in)(const KvSnapshotArgs&, Stream);
  void (*kv_share)(const KvShareArgs&, Stream);
  void (*kv_attach)(const KvAttachArgs&, Stream);
  void (*kv_evict)(const KvEvictArgs&, Stream);
  void (*kv_demote)(const KvDemoteArgs&, Stream);
  void (*kv_store)(const KvStoreArgs&, Stream);
  void (*attention)(const AttentionArgs&, Stream);
  void (*kv_score)(const KvScoreArgs&, Stream);
  void (*kv_compress)(const KvCompressArgs&, Stream);
  void (*sample)(const SampleArgs&, Stream);
};

inline constexpr int64_t kPackRows = 64;

}  // namespace tessera
