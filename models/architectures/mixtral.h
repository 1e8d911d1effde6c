#pragma once

#include "files/json_fields.h"
#include "models/architectures/llama.h"
#include "models/architectures/qwen3.h"
#include "models/config/config_limits.h"

namespace tessera::architectures {

inline int64_t experts(const ModelConfig& config) {
  return config.experts;
}

inline void read_experts(JsonFields& fields, const char* count, ModelConfig& config) {
  config.experts = fields.integer(count, 1, config_limits::kMaxExperts);
  config.chosen_experts = fields.integer("num_experts_per_tok", 1, std::max(config.experts, 1));
}

inline void read_mixtral(JsonFields& fields, ModelConfig& config) {
  read_experts(fields, fields.has("num_experts") ? "num_experts" : "num_local_experts", config);
  config.normalise_experts = true;
}

// Every layer must have experts.
inline void read_qwen3_moe(JsonFields& fields, ModelConfig& config) {
  read_experts(fields, fields.has("num_local_experts") ? "num_local_experts" : "num_experts",
               config);
  config.ffn = fields.integer("moe_intermediate_size", 1, config_limits::kMaxWidth);
  config.normalise_experts = fields.boolean_or("norm_topk_prob", false);
  if (fields.integer_or("decoder_sparse_step", 1, 1, config_limits::kMaxLayers) != 1) {
    fields.refuse("decoder_sparse_step", "is not 1; layers without experts are not supported");
  }
  if (!fields.integers_or_none("mlp_only_layers", 0, config_limits::kMaxLayers).empty()) {
    fields.refuse("mlp_only_layers", "is not empty; layers without experts are not supported");
  }
}

// clang-format off
inline constexpr auto kMixtralExperts = std::to_array<TensorRule>({
    {"model.layers.{layer}.post_attention_layernorm.weight",             "blk.{layer}.ffn_norm.weight",      ffn_norm, hidden,  nullptr, none, nullptr},
    {"model.layers.{layer}.block_sparse_moe.gate.weight",                "blk.{layer}.ffn_gate_inp.weight",  router,   experts, hidden,  none, nullptr},
    {"model.layers.{layer}.block_sparse_moe.experts.{expert}.w1.weight", "blk.{layer}.ffn_gate_exps.weight", gate_up,  ffn,     hidden,  none, nullptr},
    {"model.layers.{layer}.block_sparse_moe.experts.{expert}.w3.weight", "blk.{layer}.ffn_up_exps.weight",   gate_up,  ffn,     hidden,  none, nullptr},
    {"model.layers.{layer}.block_sparse_moe.experts.{expert}.w2.weight", "blk.{layer}.ffn_down_exps.weight", down,     hidden,  ffn,     none, nullptr},
});

inline constexpr auto kQwen3Experts = std::to_array<TensorRule>({
    {"model.layers.{layer}.post_attention_layernorm.weight",             "blk.{layer}.ffn_norm.weight",      ffn_norm, hidden,  nullptr, none, nullptr},
    {"model.layers.{layer}.mlp.gate.weight",                             "blk.{layer}.ffn_gate_inp.weight",  router,   experts, hidden,  none, nullptr},
    {"model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight",       "blk.{layer}.ffn_gate_exps.weight", gate_up,  ffn,     hidden,  none, nullptr},
    {"model.layers.{layer}.mlp.experts.{expert}.up_proj.weight",         "blk.{layer}.ffn_up_exps.weight",   gate_up,  ffn,     hidden,  none, nullptr},
    {"model.layers.{layer}.mlp.experts.{expert}.down_proj.weight",       "blk.{layer}.ffn_down_exps.weight", down,     hidden,  ffn,     none, nullptr},
});
// clang-format on

inline constexpr auto kMixtralTensors =
    joined(joined(kOuterTensors, kAttentionTensors), kMixtralExperts);
inline constexpr auto kQwen3MoeTensors =
    joined(joined(joined(kOuterTensors, kAttentionTensors), kQwen3Experts),
           joined(kQwen3Norms, kAttentionBiases));

// A Mistral with a mixture of experts.
inline constexpr Architecture kMixtral{
    .name = "MixtralForCausalLM",
    .attention = attend,
    .feed_forward = expert_feed_forward,
    .tensors = kMixtralTensors,
    .config = {.default_kv_heads = 8,
               .sliding_window = SlidingWindowRule::field,
               .default_rope_theta = 1e6f,
               .read_own_fields = read_mixtral},
    .gguf = {.name = "llama", .interleaves_heads = true, .experts = true}};

// A Qwen3 with a mixture of experts.
inline constexpr Architecture kQwen3Moe{.name = "Qwen3MoeForCausalLM",
                                        .attention = attend_with_qk_norm,
                                        .feed_forward = expert_feed_forward,
                                        .tensors = kQwen3MoeTensors,
                                        .config = {.default_kv_heads = 4,
                                                   .sliding_window = SlidingWindowRule::switched,
                                                   .attention_bias = true,
                                                   .read_own_fields = read_qwen3_moe},
                                        .gguf = {.name = "qwen3moe", .experts = true}};

}  // namespace tessera::architectures
