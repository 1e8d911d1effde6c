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

// Where an op runs: for the CPU backend a ThreadPool*, for CUDA a cudaStream_t. Always the last
// parameter; there is no ambient stream.
struct Stream {
  void* handle = nullptr;
};

// The part of a batch that belongs to one sequence: `count` new tokens, the first of which stands
// at row `first_row` of the batch and at position `context` of the sequence.
struct SequenceSpan {
  int32_t slot = 0;  // which page tables
  int32_t first_row = 0;
  int32_t count = 0;    // 0: none, at the end of a plan that Recording::start() gets
  int32_t context = 0;  // tokens already stored before this step
  KvTiers tiers;        // the formats of its rows
  // KvPolicy::newest_dense(), for tokens at positions from `prompt` on. Where it is not 0 the
  // window keeps the newest kKvGroup tokens, each in its place of its group, and these tokens come
  // one by one.
  int32_t newest = 0;
  int32_t prompt = 0;

  // Tokens at the end of the group before, which the window still holds, that a query of a span of
  // one token reads dense and not as they are stored.
  constexpr int32_t older_dense() const {
    const int32_t own = context % kKvGroup + 1;
    return count == 1 && context >= prompt && context >= kKvGroup && newest > own ? newest - own
                                                                                  : 0;
  }
  // Groups are [64 g, 64 g + 64) by position.
  constexpr int32_t closed_before() const { return context / kKvGroup; }  // groups in the rows
  constexpr int32_t closed_after() const { return (context + count) / kKvGroup; }  // after kv_store
  constexpr int32_t last_group() const {  // of the last new token
    return (context + count - 1) / kKvGroup;
  }
};

struct EmbedArgs {
  std::span<const int32_t> tokens;    // [tokens], each in [0, table.rows)
  MatrixView<const bf16> table;       // [vocab, hidden]; no data when `table_f32` serves
  MatrixView<const float> table_f32;  // [vocab, hidden]
  MatrixView<float> out;              // [tokens, hidden]
};

struct RmsNormArgs {
  MatrixView<const float> in;     // [tokens, hidden]
  std::span<const float> weight;  // [hidden]
  float epsilon = 1e-5f;
  MatrixView<float> out;  // [tokens, hidden]; may be `in`
};

// out = in * weight^T (+ bias) (+ out when `accumulate`).
// A row's result does not depend on how many rows there are: the sum over inputs has one fixed
// order per ISA. (Batch invariance is what makes deterministic serving possible.)
struct LinearArgs {
  MatrixView<const float> in;  // [tokens, weight.cols]
  const PackedWeight* weight = nullptr;
  std::span<const float> bias;   // [weight.rows] or empty
  bool accumulate = false;       // adds to `out`: the residual stream, without a pass of its own
  MatrixView<float> out;         // [tokens, weight.rows]
  std::span<std::byte> scratch;  // Backend::linear_scratch_bytes(tokens, cols) for activations
};

// Rotates q and k in place, pairs (i, i + head_dim / 2) as Hugging Face lays them out.
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

// Gives rows pages and takes pages back. First every row of the `released` slots is emptied, then
// every row of the `grown` ones gets the pages it lacks, so that these may take those in one call.
// All heads of all changes are served by one pass over the circular free list: a prefix sum over
// the changes gives each row its place in it (LeanKV, section 5.2). A page goes back to the free
// list when its last owner lets go of it. Requires: enough free pages then; room between a row's
// two ends.
struct KvResizeArgs {
  KvPool pool;
  std::span<const int32_t> released;  // slots
  std::span<const KvGrowth> grown;    // at most one for a slot
  // Of each of `grown`, the pages that it took: host memory, written by the time that the host next
  // waits for the stream, and there until then. Empty: nobody asks.
  std::span<int32_t> taken = {};
};

// Lets sequences share the pages of one prompt, copy on write: full pages get one more owner, and a
// page that is partly filled, which both would write on, is copied, as the window is.
// Requires: free pages for the copies (at most two for each row).
struct KvForkArgs {
  KvPool pool;
  std::span<const KvFork> forks;
};

// Copies all that a slot holds to host memory, so that its pages can serve others in the meantime,
// or back into a slot that holds nothing: same tokens in the same places, so what is computed from
// them has the same bits. Copying back takes as many pages as the rows need. Requires:
// kv_snapshot_bytes() bytes; to load, that many free pages.
struct KvSnapshotArgs {
  KvPool pool;
  KvSnapshot snapshot;
  std::span<std::byte> bytes;
};

// Gives each unit one more owner of the pages it names, so that they stay when the slot is
// released. Requires: full pages, in rows that kv_compress has left as kv_store filled them.
struct KvShareArgs {
  KvPool pool;
  std::span<const KvShare> shares;
};

// Lets slots begin with the tokens of units: their pages get one more owner, rows count their
// tokens, and marks, where there are any, say their positions and a score of 0. Takes no page.
// Requires: slots that hold nothing; room between a row's two ends.
struct KvAttachArgs {
  KvPool pool;
  std::span<const KvAttachment> attachments;
};

// Empties units. A page goes back to the free list when its last owner lets go of it.
struct KvDropArgs {
  KvPool pool;
  std::span<const int32_t> handles;
};

// Encodes units anew in a denser format, in place: a token's codes (or floats) are decoded to f32
// and go through the quantiser once more. The pages that this empties go back to the free list.
// Requires: pages that no row and no other unit holds; a format of codes with no smaller capacity.
struct KvDemoteArgs {
  KvPool pool;
  std::span<const PrefixBlock> prefix_blocks;  // as they are
  uint8_t tier = 0;                            // as they shall be
  std::span<std::byte> scratch;                // Backend::kv_demote_scratch_bytes(...)
};

// Dense groups. In a step a sequence's queries read the groups they stand in as they are computed,
// dense: the last of them from the slot's window, the others from scratch, one window-layout page
// for each (sequence, group but the last, KV head). dense_groups() says how many such groups a span
// has.
constexpr int32_t dense_groups(const SequenceSpan& span) {
  return span.last_group() - span.closed_before();
}

// Writes the new tokens' keys (after RoPE) and values. Tokens of a span's last group go to its
// window; each earlier group (its first tokens may come from the window) is assembled in `dense`
// and, like the last one if it is full, *closed*: encoded in the high tier's format at the end of
// each row's high tier, whose count grows by 64. Where a span wants its newest tokens dense, the
// window keeps the group before in the places that the last one has not reached. Rounds to nearest
// even; what a format cannot hold becomes its largest finite value. The same tokens give the same
// bytes, however they are cut into steps. Requires: kv_resize gave room for the groups that close.
struct KvStoreArgs {
  MatrixView<const float> keys;    // [tokens, kv_heads * head_dim]
  MatrixView<const float> values;  // [tokens, kv_heads * head_dim]
  std::span<const SequenceSpan> sequences;
  KvPagesView pages;
  int32_t layer = 0;
  // [sum of dense_groups over the sequences, kv_heads, residual_layout.page_bytes], 64-byte aligned
  std::span<std::byte> dense;
};

inline constexpr int32_t kAttentionTile = kKvGroup;  // tokens

// Which queries of a sequence count for its tokens' scores.
struct KvScoring {
  bool token_scores =
      false;  // whether the sequence's policy wants marks; false: kv_score passes it over
  KvScorer scorer = KvScorer::none;
  int32_t begin = 0;  // of the queries that count: positions [begin, end)
  int32_t end = 0;
  bool query_sums = false;  // whether the policy's key score wants KvPagesView::query_sums

  constexpr bool counts(int32_t position) const {
    return token_scores && begin <= position && position < end;
  }
};

// Of a sequence with that policy and a prompt of so many tokens.
KvScoring scoring_of(const KvPolicy& policy, int32_t prompt_tokens);

// Causal attention of the new tokens over their sequence's stored tokens, the new ones included
// (kv_store runs first: store, then attend). A query at position p reads the group of p dense, from
// the window or from `dense`, up to itself, and from the window older_dense() tokens before it; of
// the high tier all tokens but these and the groups that this step closed at or after its own; and
// the low tier. Prefill and decode are the same op: a query row's arithmetic is fixed by its
// position and its row's tokens alone (tiles of 64 tokens: the high tier's in order, the low
// tier's, then the dense group; online softmax), so results do not depend on chunk borders or on
// the rest of the batch. Grouped queries share one pass over their KV head.
//
// Sequences of one new token whose rows begin with the same pages (units, forks) read these once
// for all of them, as far as a backend can: the results are the same bit for bit.
//
// Codes are multiplied as they are (never written back as floats): q . k = scale * (q . codes) +
// zero * sum(q) with q in two int8 parts, about 15 bits; and sum p * v = sum (p * scale) * code +
// sum p * zero with p * scale in two int8 parts for each tile.
struct AttentionArgs {
  MatrixView<const float> queries;  // [tokens, query_heads * head_dim], after RoPE
  std::span<const SequenceSpan> sequences;
  KvPagesView pages;
  int32_t layer = 0;
  int32_t query_heads = 0;           // a multiple of pages.kv_heads
  float scale = 0;                   // usually 1 / sqrt(head_dim)
  int32_t sliding_window = 0;        // > 0: a query sees the last `window` positions only; then
                                     // rows hold every closed token, so place is position
  std::span<const std::byte> dense;  // as kv_store filled it
  MatrixView<float> out;             // [tokens, query_heads * head_dim]
  MatrixView<float> log_sums;        // [tokens, query_heads] or no data: log of the softmax's
                                     // denominator, for kv_score
  std::span<const KvScoring> scorings = {};  // one for each of `sequences`; empty: nobody is scored
  // Left for kv_score, of each sequence i with one new token that counts (leaves_weights()), so
  // that it need not multiply again. Row i * kv_heads + h is of KV head h: for each tile as above
  // kv_weight_tile_floats(), which begin with a number for each token, [heads of the group,
  // kAttentionTile], made of score = q . k * scale * log2(e). The CPU leaves weights relative to
  // the tile's running maximum, 2^(score - maximum), and behind them [heads] maxima; CUDA leaves
  // scores. The caller owns it, once for all layers. There may be fewer rows than the step's
  // sequences have: kv_score multiplies for the others, to the same bits.
  MatrixView<float> weights = {};  // [rows, kv_weight_row_floats()], 64-byte aligned
  std::span<std::byte> scratch;    // Backend::attention_scratch_bytes(...), as new aligns
  bool share_reads = true;         // false: each sequence reads for itself, for comparison
};

// The most query heads of one KV head whose attention kv_score aggregates.
inline constexpr int32_t kMaxScoredHeads = 48;

// What attention leaves of a tile and a row for kv_score; each tier may end with a tile that is not
// full.
constexpr int64_t kv_weight_tile_floats(int32_t group) {
  return int64_t{kAttentionTile} * group + round_up(group, 16);
}
constexpr int64_t kv_weight_row_floats(int32_t context, int32_t group) {
  return (int64_t{context} / kAttentionTile + 3) * kv_weight_tile_floats(group);
}

// Gives the new tokens marks (a score of 0 and their position), then adds to the score of every
// token the attention that this step's counting queries paid it: the probability, or its square, of
// each query head of its KV head's group; mean and sum add the group's mean, squares its sum. It
// runs after kv_store and attention: of a prompt's queries it is a second q . k over what attention
// read, with the log_sums that attention left; of a sequence that decodes it takes the weights that
// attention left too. A mark gets its queries one by one in order of position, so scores do not
// depend on how tokens are cut into steps.
//
// Where a policy's key score wants it, it also adds |q| of the new tokens, over the query heads of
// each KV head, to KvPagesView::query_sums.
struct KvScoreArgs {
  MatrixView<const float> queries;   // [tokens, query_heads * head_dim], after RoPE
  MatrixView<const float> log_sums;  // [tokens, query_heads], as attention left them
  std::span<const SequenceSpan> sequences;
  std::span<const KvScoring> scorings;   // one for each of `sequences`
  MatrixView<const float> weights = {};  // as attention left them; no rows: it left none
  KvPagesView pages;                     // with marks
  int32_t layer = 0;
  int32_t query_heads = 0;
  float scale = 0;
  std::span<const std::byte> dense;  // as kv_store filled it
};

// Whether the weights have rows for sequence `i`, which is one that decodes.
template <class Args>  // AttentionArgs, KvScoreArgs
constexpr bool has_weight_rows(const Args& args, const SequenceSpan& sequence, int64_t i) {
  return sequence.count == 1 && (i + 1) * args.pages.kv_heads <= args.weights.rows;
}

// Whether attention leaves weights of sequence `i`, so that kv_score need not multiply: of one that
// decodes and counts. The scalar backend does not.
template <class Args>
bool leaves_weights(const Args& args, size_t i) {
  return !args.scorings.empty() && args.scorings[i].counts(args.sequences[i].context) &&
         has_weight_rows(args, args.sequences[i], static_cast<int64_t>(i));
}

// One sequence to compress: by `policy`, in all layers and heads.
struct KvCompression {
  int32_t slot = 0;
  KvTiers tiers;
  KvPolicy policy;     // policy_error() found nothing; a lossy rule
  int32_t tokens = 0;  // stored, the open group's included
  int32_t prompt_tokens = 0;
  int32_t evaluated = 0;  // positions below were judged by an earlier call; 0 at the first
  bool pool = false;      // the prompt's scores are complete: pool them now, once
  constexpr int32_t evaluated_after() const {  // what is to be said as `judged` the next time
    const int32_t group = tokens / kKvGroup - policy.recent;
    return group > 0 ? group * kKvGroup : 0;
  }
};

// What became of it, over all layers and heads.
struct KvCompressed {
  int64_t pages_freed = 0;  // fewer than taken: negative; at least -(layers * kv_heads)
  int64_t low_pages = 0;    // that its low tier has now
  int64_t demoted = 0;      // tokens of one KV head
  int64_t dropped = 0;
};

// Select and compact, in place. First every row is planned by itself, then, where the policy's
// allocator asks for it, a budget is spread across rows, then every row is compacted: what is
// demoted is decoded and encoded again in the low tier's format, at the low tier's end; what is
// dropped vanishes; the gaps that this leaves in a tier are filled with the tier's last tokens,
// copied as they are, marks moving along. So the work is in proportion to what changes, and a place
// says nothing of a position: marks know it. Pages that end up empty go back to the free list, one
// prefix sum for all rows.
//
// Keys that go to a sparse low tier keep the channels that rank highest by the policy's key_score.
//
// Tokens are judged with kKvGroup granularity: those that left the recent window since the call
// before (positions [judged, evaluated_after())) are new to the rule; what it does with the older
// ones is the rule's affair (LeanKV's Algorithm 1: one victim for each that comes in).
//
// Pages with more than one owner, and what stands before them in the same tier, are left alone.
// Requires: at least layers * kv_heads free pages (a row may need one before it can free one, and
// may end with one more than it had); tokens < pages.row_token_scores; kv_score has seen every
// step, and for key_score output_aware every query of the newest closed group and the open one.
struct KvCompressArgs {
  KvPool pool;
  std::span<const KvCompression> sequences;
  std::span<KvCompressed> results;  // one for each of `sequences`
  std::span<std::byte> scratch;     // Backend::kv_compress_scratch_bytes(...), 64-byte aligned
};

// The most that one call of `sample` may be given; scratch is sized by it once, at start.
struct SampleLimits {
  int32_t rows = 0;
  int32_t vocab = 0;    // <= kMaxSampledVocab
  int32_t changes = 0;  // of all rows together
};

// The next token of each row (kernels/sampling.h). What a row wants is plan, on the host; logits
// and what is sampled lie where the backend's memory is. Logits are changed meanwhile and put back.
// A row's token depends on the row alone.
struct SampleArgs {
  MatrixView<float> logits;              // [any, vocab]
  std::span<const SampleRow> rows;       // no two of the same row of `logits`
  std::span<const LogitChange> changes;  // the rows', one after the other
  std::span<SampledToken> sampled;       // one for each of `rows`
  std::span<std::byte> scratch;          // Backend::sample_scratch_bytes(...), 64-byte aligned
};

// The largest step an op must be able to serve; scratch is sized by it once, at start.
struct StepLimits {
  int32_t tokens = 0;
  int32_t sequences = 0;
  int32_t context = 0;
};

// The most dense groups a step can have: two tokens reach into a group's end and the next one's
// beginning, and each further group of a sequence takes 64.
constexpr int64_t max_dense_groups(const StepLimits& limits) {
  const int32_t pairs = limits.tokens / 2 < limits.sequences ? limits.tokens / 2 : limits.sequences;
  return pairs + (limits.tokens - 2 * pairs) / kKvGroup;
}

// One complete table of ops. A backend fills it in one place, and the table *is* the list of
// kernels: tests walk it, and kernels/op_cost.h states what each op costs. Ops allocate nothing and
// keep no state. Where an op cannot serve its arguments, that is a bug of the caller: what can be
// asked for is checked when a model loads.
struct Backend {
  const char* name;  // "cpu"
  const char* isa;   // "scalar", "avx2", "avx512", "amx"

  // 0: there are no kernels for weights of that format.
  int64_t (*packed_weight_bytes)(WeightFormat format, int64_t rows, int64_t cols);
  // Converts rows [first_row, first_row + source.rows) of `weight`; rows may come in any order
  // and in pieces, so a checkpoint is never held twice. Pieces start at multiples of kPackRows.
  void (*pack_weight)(MatrixView<const float> source, int64_t first_row,
                      const PackedWeight& weight);
  int64_t (*linear_scratch_bytes)(int64_t tokens, int64_t cols);
  int64_t (*attention_scratch_bytes)(const StepLimits& limits, int32_t query_heads,
                                     int32_t head_dim);
  int64_t (*kv_compress_scratch_bytes)(const KvPagesView& pages, Stream);
  int64_t (*kv_demote_scratch_bytes)(const KvPagesView& pages, Stream);
  int64_t (*sample_scratch_bytes)(const SampleLimits& limits, Stream);

  // Called once on the thread that will call the ops: places it beside the stream's own threads.
  void (*attach_thread)(Stream);

  // Where views, pools, weights and scratch lie. Null: in host memory. What ops read of a step's
  // plan (tokens, positions, sequences ...) is host memory for every backend.
  const DeviceMemory* memory = nullptr;
  // Whether its ops serve pages of that format. Null: all that is_supported().
  bool (*serves_pages)(KvFormat format, int32_t head_dim) = nullptr;
  // Notes ops to be started together later. Null: they are called each time.
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
