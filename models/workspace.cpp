#include "models/workspace.h"

#include <algorithm>
#include <vector>

#include "base/status_macros.h"
#include "models/config/rope_table.h"
#include "models/lora/product.h"

namespace tessera {
namespace {

// Rows of the feed-forward block: each token has one for each of its experts.
int64_t feed_forward_rows(const ModelConfig& config, int64_t tokens) {
  return tokens * std::max(config.chosen_experts, 1);
}

int64_t low_rank_rows(int64_t tokens) {
  return std::min<int64_t>(tokens, kLowRankRows);
}

int64_t linear_scratch_bytes(const ModelConfig& config, int64_t tokens, int64_t logits_rows,
                             const Backend& backend) {
  const int64_t rows = feed_forward_rows(config, tokens);
  return std::max({backend.linear_scratch_bytes(rows, config.hidden),
                   backend.linear_scratch_bytes(tokens, config.query_width()),
                   backend.linear_scratch_bytes(rows, config.ffn),
                   backend.linear_scratch_bytes(tokens, config.shared_ffn),
                   backend.linear_scratch_bytes(logits_rows, config.hidden)});
}

// Limit of score_weights, which has one row per KV head of each sequence. For sequences beyond it,
// kv_score multiplies again, to the same bits.
constexpr int64_t kMaxWeightBytes = int64_t{128} << 20;

MatrixView<float> cut_weights(const ModelConfig& config, const StepLimits& limits,
                              MemoryCutter& cutter) {
  const int64_t cols = attention_weight_row_floats(limits.context, config.heads / config.kv_heads);
  const int64_t fitting = kMaxWeightBytes / (cols * int64_t{sizeof(float)});
  return cutter.matrix<float>(std::min(int64_t{limits.sequences} * config.kv_heads, fitting), cols);
}

RopeTables cut_rope(const ModelConfig& config, const StepLimits& limits, MemoryCutter& cutter) {
  const int64_t pairs = config.rotary_width() / 2;
  const auto table = [&] {
    return MatrixView<float>{cutter.array<float>(limits.context * pairs).data(), limits.context,
                             pairs, pairs};
  };
  RopeTables tables;
  tables.cos = table();
  tables.sin = table();
  return tables;
}

void cut_experts(const ModelConfig& config, int64_t tokens, MemoryCutter& cutter,
                 Workspace::Views& views) {
  if (config.experts == 0) return;
  const int64_t rows = feed_forward_rows(config, tokens);
  views.router_logits = cutter.matrix<float>(tokens, config.experts + (config.shared_gate ? 1 : 0));
  views.expert_rows = {.offsets = cutter.array<int32_t>(config.own_experts + 1),
                       .tokens = cutter.array<int32_t>(rows),
                       .places = cutter.array<int32_t>(rows),
                       .weights = cutter.array<float>(rows)};
  views.expert_hidden = cutter.matrix<float>(rows, config.hidden);
  if (config.shared_ffn == 0) return;
  views.shared_gate_up = cutter.matrix<float>(tokens, 2 * int64_t{config.shared_ffn});
  views.shared_gated = cutter.matrix<float>(tokens, config.shared_ffn);
}

Workspace::Views cut(const ModelConfig& config, const StepLimits& limits, int32_t max_logits_rows,
                     const Backend& backend, MemoryCutter& cutter) {
  const int64_t tokens = limits.tokens;
  const int64_t rows = feed_forward_rows(config, tokens);
  Workspace::Views views;
  views.hidden = cutter.matrix<float>(tokens, config.hidden);
  views.normed = cutter.matrix<float>(tokens, config.hidden);
  views.qkv = cutter.matrix<float>(tokens, config.query_width() + 2 * config.kv_width());
  views.attended = cutter.matrix<float>(tokens, config.query_width());
  views.gate_up = cutter.matrix<float>(rows, 2 * int64_t{config.ffn});
  views.gated = cutter.matrix<float>(rows, config.ffn);
  views.wanted = cutter.matrix<float>(max_logits_rows, config.hidden);
  views.low_rank = cutter.matrix<float>(low_rank_rows(tokens), kMaxStackedRank);
  views.rope = cut_rope(config, limits, cutter);
  if (config.rope_scaling.query_growth > 0) {
    views.query_rope = cut_rope(config, limits, cutter);
  }
  if (config.local_rope_theta > 0) {
    views.local_rope = cut_rope(config, limits, cutter);
  }
  cut_experts(config, tokens, cutter, views);
  views.linear_scratch =
      cutter.array<std::byte>(linear_scratch_bytes(config, tokens, max_logits_rows, backend));
  views.log_sums = cutter.matrix<float>(tokens, config.heads);
  views.score_weights = cut_weights(config, limits, cutter);
  views.attention_scratch = cutter.array<std::byte>(
      backend.attention_scratch_bytes(limits, config.heads, config.head_dim));
  if (backend.attention_plan_bytes != nullptr) {
    views.attention_plan = cutter.array<std::byte>(
        backend.attention_plan_bytes(limits, config.layers, config.kv_heads, config.heads));
  }
  const KvPageLayout widest = KvPageLayout::make(kKvF32, config.head_dim, kKvGroup);
  views.dense =
      cutter.array<std::byte>(max_dense_groups(limits) * config.kv_heads * widest.page_bytes);
  return views;
}

// Returns: a config with the RoPE of the windowed layers, which nothing scales.
ModelConfig local_rope_config(const ModelConfig& config) {
  ModelConfig local = config;
  local.rope_theta = config.local_rope_theta;
  local.rope_scaling = {};
  return local;
}

void fill_rope_tables(const ModelConfig& config, bool grows, const Backend& backend,
                      const RopeTables& views) {
  if (views.cos.data == nullptr) return;
  if (backend.memory == nullptr) {
    fill_rope_table(config, grows, views.cos, views.sin);
    return;
  }
  const auto like = [](const MatrixView<float>& table, std::vector<float>& numbers) {
    numbers.resize(static_cast<size_t>(table.rows * table.cols));
    return MatrixView<float>{numbers.data(), table.rows, table.cols, table.stride};
  };
  std::vector<float> cos, sin;
  fill_rope_table(config, grows, like(views.cos, cos), like(views.sin, sin));
  put(backend, std::span<const float>(cos), views.cos.data);
  put(backend, std::span<const float>(sin), views.sin.data);
}

}  // namespace

int64_t Workspace::bytes_for(const ModelConfig& config, const StepLimits& limits,
                             int32_t max_logits_rows, const Backend& backend) {
  MemoryCutter measure;
  cut(config, limits, max_logits_rows, backend, measure);
  return measure.used();
}

absl::StatusOr<Workspace> Workspace::create(const ModelConfig& config, const StepLimits& limits,
                                            int32_t max_logits_rows, const Backend& backend) {
  Workspace workspace;
  TESSERA_ASSIGN_OR_RETURN(
      workspace.memory_,
      AlignedMemory::allocate(bytes_for(config, limits, max_logits_rows, backend), backend));
  MemoryCutter cutter(workspace.memory_.data());
  workspace.views_ = cut(config, limits, max_logits_rows, backend, cutter);
  const Views& views = workspace.views_;
  fill_rope_tables(config, /*grows=*/false, backend, views.rope);
  fill_rope_tables(config, /*grows=*/true, backend, views.query_rope);
  fill_rope_tables(local_rope_config(config), /*grows=*/false, backend, views.local_rope);
  return workspace;
}

}  // namespace tessera
