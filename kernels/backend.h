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

  int64_t flops() const { return 2 * in.rows * weight->rows * weight->cols; }
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

// Gives every (layer, KV head) row of some slots more pages, or takes pages back. All heads of all
// changes are served by one pass over the circular free list: a prefix sum over the changes gives
// each row its place in it (LeanKV, section 5). A page that a row gives up is free when no other
// row owns it.
// Rows that shrink are served first, so that rows that grow may take their pages in the same call.
// Requires enough pages then, `pages_after` within the row, and `pages_before` as it is. A row's
// new pages have neighbouring places in the free list; its earlier ones stay where they are.
struct KvResizeArgs {
  KvPool pool;
  std::span<const KvRowResize> changes;  // at most one for a slot
};

// Lets slots share what their sequences have in common, copy on write: pages that the tokens fill
// gain an owner, and a page they fill in part is copied into one from the free list, because source
// and target will write on in it. Pages with several owners are never written.
// Requires enough free pages, tokens that stand in source's pages, and no source that is a target.
struct KvForkArgs {
  KvPool pool;
  KvPagesView pages;  // of the pool
  std::span<const KvRowFork> forks;
};

// Writes the new tokens' keys (after RoPE) and values into their pages, which kv_resize has given.
// Rounds to nearest even; what a format cannot hold becomes its largest finite value.
struct KvStoreArgs {
  MatrixView<const float> keys;             // [tokens, kv_heads * head_dim]
  MatrixView<const float> values;           // [tokens, kv_heads * head_dim]
  std::span<const SequenceSpan> sequences;
  KvPagesView pages;
  int32_t layer = 0;
};

// Causal attention of the new tokens over their sequence's pages, the new tokens' own included
// (KvStore runs first: store, then attend). Prefill and decode are the same op: a query row's
// arithmetic is fixed by its position alone (tiles of kAttentionTile tokens in ascending order,
// online softmax), so results do not depend on chunk borders or on the rest of the batch.
// Grouped queries share one pass over their KV head's pages.
// Pages that no query of a sequence sees, before its windows, may be gone (kNoPage).
struct AttentionArgs {
  MatrixView<const float> queries;          // [tokens, query_heads * head_dim], after RoPE
  std::span<const SequenceSpan> sequences;
  KvPagesView pages;
  int32_t layer = 0;
  int32_t query_heads = 0;                  // a multiple of pages.kv_heads
  float scale = 0;                          // usually 1 / sqrt(head_dim)
  int32_t window = 0;                       // > 0: a query sees the last `window` positions only
  MatrixView<float> out;                    // [tokens, query_heads * head_dim]
  std::span<std::byte> scratch;             // Backend::attention_scratch_bytes(...), as new aligns

  int64_t bytes() const;  // of keys and values that must be read once
  int64_t flops() const;
};

inline constexpr int32_t kAttentionTile = 64;  // tokens; the group of the design

// The largest step an op must be able to serve; scratch is sized by it once, at start.
struct StepLimits {
  int32_t tokens = 0;
  int32_t sequences = 0;
  int32_t context = 0;
};

// One complete table of ops. A backend fills it in one place, and the table *is* the list of
// kernels: tests walk it. Ops allocate nothing and keep no state. Where an op cannot serve its
// arguments, that is a bug of the caller: what can be asked for is checked when a model loads.
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
