#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/half.h"
#include "kernels/kv_page.h"
#include "kernels/kv_pool.h"
#include "kernels/view.h"
#include "kernels/weight.h"

namespace tessera {

// Where an op runs: for the CPU backend a ThreadPool*, for CUDA a cudaStream_t. Always the last
// parameter; there is no ambient stream.
struct Stream {
  void* handle = nullptr;
};

// The part of a batch that belongs to one sequence: `count` new tokens, the first of which stands
// at row `first_row` of the batch and at position `context` of the sequence.
struct SequenceSpan {
  int32_t slot = 0;       // which page tables
  int32_t first_row = 0;
  int32_t count = 0;
  int32_t context = 0;    // tokens already stored before this step
  KvTiers tiers;          // the formats of its rows

  // Groups are [64 g, 64 g + 64) by position.
  constexpr int32_t closed_before() const { return context / kKvGroup; }  // groups in the rows
  constexpr int32_t closed_after() const { return (context + count) / kKvGroup; }  // after kv_store
  constexpr int32_t last_group() const {  // of the last new token
    return (context + count - 1) / kKvGroup;
  }
};

struct EmbedArgs {
  std::span<const int32_t> tokens;  // [tokens], each in [0, table.rows)
  MatrixView<const bf16> table;      // [vocab, hidden]; no data when `table_f32` serves
  MatrixView<const float> table_f32;  // [vocab, hidden]
  MatrixView<float> out;              // [tokens, hidden]
};

struct RmsNormArgs {
  MatrixView<const float> in;      // [tokens, hidden]
  std::span<const float> weight;   // [hidden]
  float epsilon = 1e-5f;
  MatrixView<float> out;           // [tokens, hidden]; may be `in`
};

// out = in * weight^T (+ bias) (+ out when `accumulate`).
// A row's result does not depend on how many rows there are: the sum over inputs has one fixed
// order per ISA. (Batch invariance is what makes deterministic serving possible.)
struct LinearArgs {
  MatrixView<const float> in;      // [tokens, weight.cols]
  const PackedWeight* weight = nullptr;
  std::span<const float> bias;     // [weight.rows] or empty
  bool accumulate = false;         // adds to `out`: the residual stream, without a pass of its own
  MatrixView<float> out;           // [tokens, weight.rows]
  std::span<std::byte> scratch;    // Backend::linear_scratch_bytes(tokens, cols) for activations
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
// every row of the `grown` ones gets the pages it lacks, so that these may take those in one call. All
// heads of all changes are served by one pass over the circular free list: a prefix sum over the
// changes gives each row its place in it (LeanKV, section 5.2). A page goes back to the free list
// when its last owner lets go of it.
// Requires: enough free pages then; room between a row's two ends.
struct KvResizeArgs {
  KvPool pool;
  std::span<const int32_t> released;   // slots
  std::span<const KvGrowth> grown;     // at most one for a slot
};

// Lets sequences share the pages of one prompt, copy on write: full pages get one more owner, and a
// page that is partly filled, which both would write on, is copied, as the window is.
// Requires: free pages for the copies (at most two for each row).
struct KvForkArgs {
  KvPool pool;
  std::span<const KvFork> forks;
};

// Dense groups. In a step a sequence's queries read the groups they stand in as they are computed,
// dense: the last of them from the slot's window, the others from scratch, one window-layout page for
// each (sequence, group but the last, KV head). dense_groups() says how many such groups a span has.
constexpr int32_t dense_groups(const SequenceSpan& span) {
  return span.last_group() - span.closed_before();
}

// Writes the new tokens' keys (after RoPE) and values. Tokens of a span's last group go to its
// window; each earlier group (its first tokens may come from the window) is assembled in `dense`
// and, like the last one if it is full, *closed*: encoded in the high tier's format at the end of
// each row's high tier, whose count grows by 64. Rounds to nearest even; what a format cannot hold
// becomes its largest finite value. The same tokens give the same bytes, however they are cut into
// steps.
// Requires: kv_resize gave room for the groups that close.
struct KvStoreArgs {
  MatrixView<const float> keys;             // [tokens, kv_heads * head_dim]
  MatrixView<const float> values;           // [tokens, kv_heads * head_dim]
  std::span<const SequenceSpan> sequences;
  KvPagesView pages;
  int32_t layer = 0;
  // [sum of dense_groups over the sequences, kv_heads, window_layout.page_bytes], 64-byte aligned
  std::span<std::byte> dense;
};

// Causal attention of the new tokens over their sequence's stored tokens, the new ones included
// (kv_store runs first: store, then attend). A query at position p reads the group of p dense, from
// the window or from `dense`, up to itself; of the high tier all tokens but the groups that this
// step closed at or after its own; and the low tier. Prefill and decode are the same op: a query
// row's arithmetic is fixed by its position and its row's tokens alone (tiles of 64 tokens: the high
// tier's in order, the low tier's, then the dense group; online softmax), so results do not depend on
// chunk borders or on the rest of the batch. Grouped queries share one pass over their KV head.
//
// Codes are multiplied as they are (never written back as floats): q . k = scale * (q . codes) +
// zero * sum(q) with q in two int8 parts, about 15 bits; and sum p * v = sum (p * scale) * code +
// sum p * zero with p * scale in two int8 parts for each tile.
struct AttentionArgs {
  MatrixView<const float> queries;          // [tokens, query_heads * head_dim], after RoPE
  std::span<const SequenceSpan> sequences;
  KvPagesView pages;
  int32_t layer = 0;
  int32_t query_heads = 0;                  // a multiple of pages.kv_heads
  float scale = 0;                          // usually 1 / sqrt(head_dim)
  int32_t window = 0;                       // > 0: a query sees the last `window` positions only; then
                                            // rows hold every closed token, so place is position
  std::span<const std::byte> dense;         // as kv_store filled it
  MatrixView<float> out;                    // [tokens, query_heads * head_dim]
  MatrixView<float> log_sums;               // [tokens, query_heads] or no data: log of the softmax's
                                            // denominator, for kv_score
  std::span<std::byte> scratch;             // Backend::attention_scratch_bytes(...), as new aligns
};

inline constexpr int32_t kAttentionTile = kKvGroup;  // tokens

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
  const char* isa;   // "scalar", "avx2", "avx512"

  int64_t (*packed_weight_bytes)(WeightFormat format, int64_t rows, int64_t cols);
  // Converts rows [first_row, first_row + source.rows) of `weight`; rows may come in any order
  // and in pieces, so a checkpoint is never held twice. Pieces start at multiples of kPackRows.
  void (*pack_weight)(MatrixView<const float> source, int64_t first_row, const PackedWeight& weight);
  int64_t (*linear_scratch_bytes)(int64_t tokens, int64_t cols);
  int64_t (*attention_scratch_bytes)(const StepLimits& limits, int32_t query_heads, int32_t head_dim);

  // Called once on the thread that will call the ops: places it beside the stream's own threads.
  void (*attach_thread)(Stream);

  void (*embed)(const EmbedArgs&, Stream);
  void (*rms_norm)(const RmsNormArgs&, Stream);
  void (*linear)(const LinearArgs&, Stream);
  void (*rope)(const RopeArgs&, Stream);
  void (*silu_mul)(const SiluMulArgs&, Stream);
  void (*kv_resize)(const KvResizeArgs&, Stream);
  void (*kv_fork)(const KvForkArgs&, Stream);
  void (*kv_store)(const KvStoreArgs&, Stream);
  void (*attention)(const AttentionArgs&, Stream);
};

inline constexpr int64_t kPackRows = 64;

}  // namespace tessera
