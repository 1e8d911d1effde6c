#pragma once

#include "files/json_fields.h"
#include "models/architectures/granite.h"
#include "models/architectures/mixtral.h"
#include "models/architectures/qwen2.h"
#include "models/config/config_limits.h"

// Mixtures with an expert that serves every token, and those of Granite, which stores the matrices
// of all experts of a layer as one tensor.
namespace tessera::architectures {

inline int64_t shared_ffn(const ModelConfig& config) {
  return config.shared_ffn;
}
inline int64_t one_row(const ModelConfig&) {
  return 1;
}
inline bool has_shared_gate(const ModelConfig& config) {
  return config.shared_gate;
}

inline void read_qwen2_moe(JsonFields& fields, ModelConfig& config) {
  read_qwen3_moe(fields, config);
  config.shared_ffn =
      fields.integer_or("shared_expert_intermediate_size", 5632, 1, config_limits::kMaxWidth);
  config.shared_gate = true;
  if (!fields.boolean_or("qkv_bias", true)) {
    fields.refuse("qkv_bias", "is false; q, k and v without biases are not supported");
  }
}

inline void read_granite_moe(JsonFields& fields, ModelConfig& config) {
  read_multipliers(fields, config);
  read_experts(fields, "num_local_experts", config);
  config.normalise_experts = true;
}

inline void read_granite_moe_shared(JsonFields& fields, ModelConfig& config) {
  read_granite_moe(fields, config);
  config.shared_ffn = fields.integer_or("shared_intermediate_size", 0, 0, config_limits::kMaxWidth);
}

inline bool has_shared_expert(const ModelConfig& config) {
  return config.shared_ffn > 0;
}

// Matrices of a Granite that another tensor holds.
inline constexpr StackedTensor kGraniteGate{
    "model.layers.{layer}.block_sparse_moe.input_linear.weight", 0, 2};
inline constexpr StackedTensor kGraniteUp{
    "model.layers.{layer}.block_sparse_moe.input_linear.weight", 1, 2};
inline constexpr StackedTensor kGraniteDown{
    "model.layers.{layer}.block_sparse_moe.output_linear.weight"};
inline constexpr StackedTensor kGraniteSharedGate{
    "model.layers.{layer}.shared_mlp.input_linear.weight", 0, 2};
inline constexpr StackedTensor kGraniteSharedUp{
    "model.layers.{layer}.shared_mlp.input_linear.weight", 1, 2};

constexpr TensorRule stacked(TensorRule rule, const StackedTensor& holder) {
  rule.stacked = holder;
  return rule;
}

// clang-format off
inline constexpr auto kQwen2Experts = std::to_array<TensorRule>({
    {"model.layers.{layer}.post_attention_layernorm.weight",       "blk.{layer}.ffn_norm.weight",           ffn_norm,       hidden,     nullptr,    none, nullptr},
    {"model.layers.{layer}.mlp.gate.weight",                       "blk.{layer}.ffn_gate_inp.weight",       router,         experts,    hidden,     none, nullptr},
    {"model.layers.{layer}.mlp.shared_expert_gate.weight",         "blk.{layer}.ffn_gate_inp_shexp.weight", router,         one_row,    hidden,     none, has_shared_gate},
    {"model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight", "blk.{layer}.ffn_gate_exps.weight",      gate_up,        ffn,        hidden,     none, nullptr},
    {"model.layers.{layer}.mlp.experts.{expert}.up_proj.weight",   "blk.{layer}.ffn_up_exps.weight",        gate_up,        ffn,        hidden,     none, nullptr},
    {"model.layers.{layer}.mlp.experts.{expert}.down_proj.weight", "blk.{layer}.ffn_down_exps.weight",      down,           hidden,     ffn,        none, nullptr},
    {"model.layers.{layer}.mlp.shared_expert.gate_proj.weight",    "blk.{layer}.ffn_gate_shexp.weight",     shared_gate_up, shared_ffn, hidden,     rows, nullptr},
    {"model.layers.{layer}.mlp.shared_expert.up_proj.weight",      "blk.{layer}.ffn_up_shexp.weight",       shared_gate_up, shared_ffn, hidden,     rows, nullptr},
    {"model.layers.{layer}.mlp.shared_expert.down_proj.weight",    "blk.{layer}.ffn_down_shexp.weight",     shared_down,    hidden,     shared_ffn, cols, nullptr},
});

inline constexpr auto kGraniteExperts = std::to_array<TensorRule>({
    {"model.layers.{layer}.post_attention_layernorm.weight",                       "blk.{layer}.ffn_norm.weight",      ffn_norm, hidden,  nullptr, none, nullptr},
    {"model.layers.{layer}.block_sparse_moe.router.layer.weight",                  "blk.{layer}.ffn_gate_inp.weight",  router,   experts, hidden,  none, nullptr},
    stacked({"model.layers.{layer}.block_sparse_moe.experts.{expert}.gate.weight", "blk.{layer}.ffn_gate_exps.weight", gate_up,  ffn,     hidden,  none, nullptr}, kGraniteGate),
    stacked({"model.layers.{layer}.block_sparse_moe.experts.{expert}.up.weight",   "blk.{layer}.ffn_up_exps.weight",   gate_up,  ffn,     hidden,  none, nullptr}, kGraniteUp),
    stacked({"model.layers.{layer}.block_sparse_moe.experts.{expert}.down.weight", "blk.{layer}.ffn_down_exps.weight", down,     hidden,  ffn,     none, nullptr}, kGraniteDown),
});

inline constexpr auto kGraniteSharedExpert = std::to_array<TensorRule>({
    stacked({"model.layers.{layer}.shared_mlp.gate.weight", "blk.{layer}.ffn_gate_shexp.weight", shared_gate_up, shared_ffn, hidden,     rows, has_shared_expert}, kGraniteSharedGate),
    stacked({"model.layers.{layer}.shared_mlp.up.weight",   "blk.{layer}.ffn_up_shexp.weight",   shared_gate_up, shared_ffn, hidden,     rows, has_shared_expert}, kGraniteSharedUp),
    {"model.layers.{layer}.shared_mlp.output_linear.weight", "blk.{layer}.ffn_down_shexp.weight", shared_down,   hidden,     shared_ffn, cols, has_shared_expert},
});
// clang-format on

inline constexpr auto kQwen2MoeTensors =
    joined(joined(kOuterTensors, kAttentionTensors), joined(kQwen2Biases, kQwen2Experts));
inline constexpr auto kGraniteMoeTensors =
    joined(joined(kOuterTensors, kAttentionTensors), joined(kAttentionBiases, kGraniteExperts));
inline constexpr auto kGraniteMoeSharedTensors = joined(kGraniteMoeTensors, kGraniteSharedExpert);

// A Qwen2 with a mixture of experts, and one that serves every token.
inline constexpr Architecture kQwen2Moe{
    .name = "Qwen2MoeForCausalLM",
    .attention = attend,
    .feed_forward = expert_feed_forward,
    .tensors = kQwen2MoeTensors,
    .config = {.default_kv_heads = 16,
               .sliding_window = SlidingWindowRule::switched,
               .read_own_fields = read_qwen2_moe},
    .gguf = {.name = "qwen2moe", .experts = true, .shared_expert = true, .qwen2_mixture = true}};

// A Granite with a mixture of experts.
inline constexpr Architecture kGraniteMoe{
    .name = "GraniteMoeForCausalLM",
    .attention = attend,
    .feed_forward = expert_feed_forward,
    .tensors = kGraniteMoeTensors,
    .config = {.attention_bias = true, .read_own_fields = read_granite_moe},
    .gguf = {
        .name = "granitemoe", .interleaves_heads = true, .experts = true, .multipliers = true}};

// The same with an expert that serves every token.
inline constexpr Architecture kGraniteMoeShared{
    .name = "GraniteMoeSharedForCausalLM",
    .attention = attend,
    .feed_forward = expert_feed_forward,
    .tensors = kGraniteMoeSharedTensors,
    .config = {.attention_bias = true, .read_own_fields = read_granite_moe_shared},
    .gguf = {.name = "granitemoe",
             .interleaves_heads = true,
             .experts = true,
             .multipliers = true,
             .shared_expert = true}};

}  // namespace tessera::architectures
