#pragma once

#include <cstddef>
#include <cstdint>
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
// Always the last parameter; there is no ambient stream. Not owned.
struct Stream {
  void* handle = nullptr;
};

// Rows of a batch that belong to one sequence: `count` new tokens. The first one is row `first_row`
// of the batch and has position `context` in the sequence.
struct SequenceSpan {
  int32_t slot = 0;  // selects the page tables and residual buffers
  int32_t first_row = 0;
  int32_t count = 0;    // new tokens; 0 only at the end of a plan for Recording::start()
  int32_t context = 0;  // tokens already stored before this step
  KvTiers tiers;        // formats of its rows
  // KvPolicy::newest_dense() in tokens, for tokens at positions from `prompt` on. If not 0, the
  // residual buffer keeps the newest kKvGroup tokens, each at its position modulo kKvGroup. Tokens
  // from `prompt` on then come one per step.
  int32_t newest = 0;
  int32_t prompt = 0;

  // Returns: tokens at the end of the previous group that a query of a one-token span reads
  // unquantised. The residual buffer still holds them.
  constexpr int32_t older_dense() const {
    const int32_t own = context % kKvGroup + 1;
    return count == 1 && context >= prompt && context >= kKvGroup && newest > own ? newest - own
                                                                                  : 0;
  }
  // Closed groups of each row before the step and after kv_store. Group g has the positions [64 g,
  // 64 g + 64).
  constexpr int32_t closed_before() const { return context / kKvGroup; }  // before the step
  constexpr int32_t closed_after() const { return (context + count) / kKvGroup; }  // after kv_store
  constexpr int32_t last_group() const {  // group of the last new token
    return (context + count - 1) / kKvGroup;
  }
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

// out = in * weight^T (+ bias) (+ out if `accumulate`). Batch-invariant: a row's result does not
// depend on the number of rows, because the sum over inputs has one fixed order per ISA.
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

// Allocates and releases the pages of rows. First, every row of the `released` slots is emptied.
// Then every row of the `grown` slots gets the pages it lacks, so one call can reuse released
// pages.
// One pass over the circular free list serves all heads of all changes. A prefix sum over the
// changes gives each row its place in the list (LeanKV, section 5.2). A page returns to the free
// list when its last owner releases it.
// Requires: enough free pages after the releases; room between the two ends of each grown row.
struct KvResizeArgs {
  KvPool pool;
  std::span<const int32_t> released;  // slots
  std::span<const KvGrowth> grown;    // at most one for a slot
  // Output: pages taken by each entry of `grown`. Host memory, not owned. It is written by the time
  // the host next waits for the stream, and must stay valid until then. Empty: not reported.
  std::span<int32_t> taken = {};
};

// Shares the pages of one prompt between sequences, copy on write. A full page gets one more owner.
// A partly filled page, which both sequences would write, is copied, and so is the residual buffer.
// Requires: targets that hold nothing; free pages for the copies (at most two for each row).
struct KvForkArgs {
  KvPool pool;
  std::span<const KvFork> forks;
};

// kv_swap_out copies everything a slot holds to host memory, so that its pages can serve other
// sequences. kv_swap_in copies it back into a slot that holds nothing. Tokens return to the same
// places, so results computed from them have the same bits. kv_swap_in takes as many pages as the
// rows need.
// Requires: kv_snapshot_bytes() bytes of host memory; for kv_swap_in, enough free pages.
struct KvSnapshotArgs {
  KvPool pool;
  KvSnapshot snapshot;
  std::span<std::byte> bytes;
};

// Inserts pages of slots into prefix blocks: each page of a block gets one more owner, and so stays
// when the slot is released.
// Requires: full pages, whose tokens are as kv_store wrote them (not changed by kv_compress);
// handles that hold nothing.
struct KvShareArgs {
  KvPool pool;
  std::span<const KvShare> shares;
};

// Starts slots with the tokens of prefix blocks. The pages get one more owner, and the rows count
// the tokens. Token scores, if the pool has them, are set to the tokens' positions and a score of
// 0. Takes no page from the free list.
// Requires: slots that hold nothing; room between a row's two ends.
struct KvAttachArgs {
  KvPool pool;
  std::span<const KvAttachment> attachments;
};

// Empties prefix blocks. A page returns to the free list when its last owner releases it.
// Requires: each handle holds a prefix block.
struct KvDropArgs {
  KvPool pool;
  std::span<const int32_t> handles;
};

// Re-encodes prefix blocks in a denser format, in place. A token's codes (or floats) are decoded to
// f32 and quantised again. Pages that become empty return to the free list.
// Requires: pages that no row and no other prefix block holds; a target format of codes whose page
// capacity is not smaller.
struct KvDemoteArgs {
  KvPool pool;
  std::span<const PrefixBlock> prefix_blocks;  // with their current tiers
  uint8_t tier = 0;                            // target tier
  std::span<std::byte> scratch;                // Backend::kv_demote_scratch_bytes(...)
};

// Dense groups. In a step, a sequence's queries read their own group unquantised. The last group of
// a span is read from the slot's residual buffer. Each other group is read from scratch memory: one
// page in the residual layout for each (sequence, group but the last, KV head).
// Returns: number of such scratch groups of a span, for each KV head.
constexpr int32_t dense_groups(const SequenceSpan& span) {
  return span.last_group() - span.closed_before();
}

// Writes the new tokens' keys (after RoPE) and values. Tokens of a span's last group go to the
// residual buffer. Each earlier group is assembled in `dense`; its first tokens may come from the
// residual buffer.
// Every earlier group is *closed*, and so is the last one if it is full. A closed group is encoded
// in the high tier's format at the end of each row's high tier, whose count grows by 64. If
// SequenceSpan::newest is not 0, the residual buffer keeps the previous group in the places that
// the last group has not reached.
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

// Selects the queries of a sequence that count for its token scores.
struct KvScoring {
  // True if the sequence's policy needs token scores; otherwise kv_score skips the sequence.
  bool token_scores = false;
  KvScorer scorer = KvScorer::none;
  int32_t begin = 0;  // queries at positions [begin, end) count
  int32_t end = 0;
  // True if the policy's key score needs KvPagesView::query_sums.
  bool query_sums = false;

  constexpr bool counts(int32_t position) const {
    return token_scores && begin <= position && position < end;
  }
};

// Returns: the scoring of a sequence with `policy` and a prompt of `prompt_tokens` tokens.
KvScoring scoring_of(const KvPolicy& policy, int32_t prompt_tokens);

// Causal attention of the new tokens over their sequence's stored tokens, the new ones included.
// kv_store runs first: store, then attend. A query at position p reads:
// - the group of p unquantised, up to p, from the residual buffer or from `dense`;
// - older_dense() tokens before that group, from the residual buffer;
// - the high tier, except those tokens and the groups that this step closed at or after the group
//   of p;
// - the low tier.
//
// Prefill and decode are the same op. A query row's arithmetic depends only on its position and on
// its row's tokens. It uses tiles of 64 tokens and an online softmax: the high tier's tiles in
// order, the low tier's, then the dense group. Results therefore do not depend on chunk borders or
// on the rest of the batch. The query heads of a KV head share one pass over it.
//
// Some sequences of one new token have rows that begin with the same pages (prefix blocks, forks).
// They read these pages once for all of them, as far as the backend supports it. The results are
// the same bit for bit.
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
  // > 0: a query sees the last `sliding_window` positions only. Rows must then hold every closed
  // token, so that a token's place is its position.
  int32_t sliding_window = 0;
  std::span<const std::byte> dense;  // as kv_store filled it
  MatrixView<float> out;             // [tokens, query_heads * head_dim]
  // Output for kv_score, [tokens, query_heads]: log of the softmax denominator. No data: not
  // computed.
  MatrixView<float> log_sums;
  // One for each of `sequences`; empty: no sequence is scored.
  std::span<const KvScoring> scorings = {};
  // Output for kv_score, so that it need not multiply again. It is written for each sequence i with
  // leaves_weights(): one new token, which counts. Row i * kv_heads + h belongs to KV head h. A row
  // has kv_weight_tile_floats() floats for each tile, in the order above. They begin with one
  // number per token, [gqa_ratio, kAttentionTile], made from score = q . k * scale * log2(e).
  // The CPU stores weights relative to the tile's running maximum, 2^(score - maximum), and behind
  // them [gqa_ratio] maxima. CUDA stores scores.
  // Owned by the caller, one buffer for all layers. It may have fewer rows than the step's
  // sequences need: kv_score multiplies for the others, to the same bits.
  MatrixView<float> weights = {};  // [rows, kv_weight_row_floats()], 64-byte aligned
  std::span<std::byte> scratch;    // Backend::attention_scratch_bytes(...), aligned as by `new`
  bool share_reads = true;         // false: sequences read shared pages separately, for comparison
};

// Largest number of query heads of one KV head that kv_score supports.
inline constexpr int32_t kMaxScoredHeads = 48;

// Floats that attention leaves for kv_score: of one tile, and of one row with `context` tokens.
// Each tier may end with a partly filled tile. `group` is the GQA ratio.
constexpr int64_t kv_weight_tile_floats(int32_t group) {
  return int64_t{kAttentionTile} * group + round_up(group, 16);
}
constexpr int64_t kv_weight_row_floats(int32_t context, int32_t group) {
  return (int64_t{context} / kAttentionTile + 3) * kv_weight_tile_floats(group);
}

// Creates the new tokens' token scores: a score of 0 and their position. Then adds to every token's
// score the attention received from this step's counting queries: the probability, or its square.
// Each query head of the token's KV head contributes. The scorers mean and sum add the mean over
// these heads, squares adds their sum.
//
// Runs after kv_store and attention. For a prompt's queries it computes q . k again over what
// attention read, with the log_sums that attention left. For a sequence that decodes it uses the
// weights that attention left. Each token score receives its queries one by one in order of
// position. Scores therefore do not depend on the division of tokens into steps.
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

// Returns: true if sequence `i` decodes (one new token) and `weights` has rows for it.
template <class Args>  // AttentionArgs, KvScoreArgs
constexpr bool has_weight_rows(const Args& args, const SequenceSpan& sequence, int64_t i) {
  return sequence.count == 1 && (i + 1) * args.pages.kv_heads <= args.weights.rows;
}

// Returns: true if attention leaves weights of sequence `i`, so that kv_score need not multiply.
// Such a sequence decodes and its query counts. The scalar backend leaves none.
template <class Args>
bool leaves_weights(const Args& args, size_t i) {
  return !args.scorings.empty() && args.scorings[i].counts(args.sequences[i].context) &&
         has_weight_rows(args, args.sequences[i], static_cast<int64_t>(i));
}

// One sequence to compress by `policy`, in all layers and KV heads.
struct KvCompression {
  int32_t slot = 0;
  KvTiers tiers;
  KvPolicy policy;     // valid by policy_error(), with a lossy rule
  int32_t tokens = 0;  // stored tokens, the open group included
  int32_t prompt_tokens = 0;
  int32_t evaluated = 0;  // positions below were evaluated by an earlier call; 0 in the first
  bool pool = false;      // the prompt's scores are complete: pool them in this call, once
  // Returns: `evaluated` for the next call.
  constexpr int32_t evaluated_after() const {
    const int32_t group = tokens / kKvGroup - policy.recent;
    return group > 0 ? group * kKvGroup : 0;
  }
};

// Result for one sequence, over all layers and KV heads.
struct KvCompressed {
  int64_t pages_freed = 0;  // negative if more were taken; at least -(layers * kv_heads)
  int64_t low_pages = 0;    // pages of its low tier after the call
  int64_t demoted = 0;      // tokens, counted for each layer and KV head
  int64_t dropped = 0;
};

// Selects and compacts tokens, in place. If the policy's allocator needs it, a budget is spread
// across rows. Every row is planned and compacted separately:
// - Demoted tokens are decoded and encoded again in the low tier's format, at the low tier's end.
// - Dropped tokens are removed.
// - Gaps in a tier are filled with the tier's last tokens, copied unchanged with their token
//   scores.
//
// The work is therefore proportional to the changes. A token's place no longer implies its
// position; its token score holds the position. Pages that end up empty return to the free list,
// with one prefix sum for all rows.
//
// Keys that go to a sparse low tier keep the channels that rank highest by the policy's key_score.
//
// Tokens are evaluated with kKvGroup granularity. Tokens that left the recent groups since the
// previous call (positions [evaluated, evaluated_after())) are new to the rule. The rule decides
// about the older ones by its own criterion (LeanKV's Algorithm 1: one victim for each incoming
// token).
//
// Pages with more than one owner, and the tokens before them in the same tier, are not changed.
//
// Requires: at least layers * kv_heads free pages (a row may need one before it can free one, and
// may end with one more than it had); tokens < pages.row_token_scores; kv_score has run for every
// step; for key_score output_aware, it has seen every query of the newest closed group and the open
// one.
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

// Chooses the next token of each row (kernels/sampling.h). `rows` and `changes` are plan, in host
// memory; `logits` and `sampled` are in the backend's memory. Logits are modified during the call
// and restored. A row's token depends only on that row.
struct SampleArgs {
  MatrixView<float> logits;              // [any, vocab]
  std::span<const SampleRow> rows;       // at most one for each row of `logits`
  std::span<const LogitChange> changes;  // concatenated changes of all rows
  std::span<SampledToken> sampled;       // one for each of `rows`
  std::span<std::byte> scratch;          // Backend::sample_scratch_bytes(...), 64-byte aligned
};

// Largest step that an op must be able to serve. Scratch is sized by it once, at start.
struct StepLimits {
  int32_t tokens = 0;
  int32_t sequences = 0;
  int32_t context = 0;
};

// Returns: the largest number of dense groups of a step. Two tokens of a sequence can reach the end
// of one group and the start of the next. Each further group of that sequence takes 64 tokens.
constexpr int64_t max_dense_groups(const StepLimits& limits) {
  const int32_t pairs = limits.tokens / 2 < limits.sequences ? limits.tokens / 2 : limits.sequences;
  return pairs + (limits.tokens - 2 * pairs) / kKvGroup;
}

// One complete table of ops for a device. A backend fills it in one place, and the table is the
// list of kernels. Tests walk it, and kernels/op_cost.h states the cost of each op. Ops allocate
// nothing and keep no state.
// Errors: arguments that an op cannot serve are a bug of the caller, because the supported
// configurations are checked when a model loads.
struct Backend {
  const char* name;  // "cpu"
  const char* isa;   // "scalar", "avx2", "avx512", "amx"

  // Returns: bytes of a packed weight; 0 if there are no kernels for weights of that format.
  int64_t (*packed_weight_bytes)(WeightFormat format, int64_t rows, int64_t cols);
  // Packs rows [first_row, first_row + source.rows) of `weight`. Rows may come in any order and in
  // pieces, so a checkpoint is never held twice. Requires: pieces that start at multiples of
  // kPackRows.
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
  void (*kv_drop)(const KvDropArgs&, Stream);
  void (*kv_demote)(const KvDemoteArgs&, Stream);
  void (*kv_store)(const KvStoreArgs&, Stream);
  void (*attention)(const AttentionArgs&, Stream);
  void (*kv_score)(const KvScoreArgs&, Stream);
  void (*kv_compress)(const KvCompressArgs&, Stream);
  void (*sample)(const SampleArgs&, Stream);
};

inline constexpr int64_t kPackRows = 64;

}  // namespace tessera
