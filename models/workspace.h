#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "models/config/model_config.h"
#include "models/weights/aligned_memory.h"

namespace tessera {

// Most rows that one call of the op of adapters serves, so that their ranks stay in a cache.
inline constexpr int32_t kLowRankRows = 128;

// Cosines and sines of each position.
struct RopeTables {
  MatrixView<float> cos;  // [limits.context, head_dim / 2], dense
  MatrixView<float> sin;  // [limits.context, head_dim / 2], dense
};

// Owns the intermediate buffers and RoPE tables of a forward pass. One piece of memory, sized once
// for the largest step.
class Workspace {
 public:
  // Allocates the buffers and fills the RoPE tables.
  // Errors: ResourceExhausted.
  static absl::StatusOr<Workspace> create(const ModelConfig& config, const StepLimits& limits,
                                          int32_t max_logits_rows, const Backend& backend);

  // Returns: bytes that create() will allocate.
  static int64_t bytes_for(const ModelConfig& config, const StepLimits& limits,
                           int32_t max_logits_rows, const Backend& backend);

  // `tokens` below is limits.tokens. A step uses the first rows of each view.
  struct Views {
    MatrixView<float> hidden;    // [tokens, hidden], the residual stream
    MatrixView<float> normed;    // [tokens, hidden]
    MatrixView<float> qkv;       // [tokens, query_width + 2 * kv_width]
    MatrixView<float> attended;  // [tokens, query_width]
    MatrixView<float> gate_up;   // [rows, 2 * ffn]; rows: tokens * chosen_experts, or tokens
    MatrixView<float> gated;     // [rows, ffn]
    MatrixView<float> wanted;    // [max_logits_rows, hidden], rows of one logits() call
    MatrixView<float> low_rank;  // [kLowRankRows or tokens, kMaxStackedRank], of adapters
    RopeTables rope;
    RopeTables query_rope;  // of queries, if they grow with the position; else without data
    RopeTables local_rope;  // of windowed layers with a base of their own; else without data
    // The next three: of a mixture of experts.
    MatrixView<float> router_logits;  // [tokens, experts], and a column for a shared expert's gate
    ExpertRows expert_rows;
    MatrixView<float> expert_hidden;  // [rows, hidden]
    // The next two: of the expert that serves every token.
    MatrixView<float> shared_gate_up;  // [tokens, 2 * shared_ffn]
    MatrixView<float> shared_gated;    // [tokens, shared_ffn]
    std::span<std::byte> linear_scratch;
    std::span<std::byte> attention_scratch;
    std::span<std::byte> attention_plan;  // empty if the backend has no op for it
    MatrixView<float> log_sums;           // [tokens, heads], for scores
    // [rows, attention_weight_row_floats()], for scores; only as many rows as fit into 128 MiB
    MatrixView<float> score_weights;
    // Dense groups of a step (kernels/backend.h), with room for f32 elements.
    std::span<std::byte> dense;
  };
  const Views& views() const { return views_; }
  int64_t bytes() const { return memory_.size(); }

 private:
  AlignedMemory memory_;
  Views views_;
};

}  // namespace tessera
