#pragma once

#include "models/architectures/tensor_rule.h"

// Tensors that most architectures share, by block. An architecture joins the parts that it has, and
// lists tensors of its own in the same way.
namespace tessera::architectures {

using enum WeightSlot;
using enum ShardAxis;

inline int64_t vocab(const ModelConfig& config) {
  return config.vocab;
}
inline int64_t hidden(const ModelConfig& config) {
  return config.hidden;
}
inline int64_t query_width(const ModelConfig& config) {
  return config.query_width();
}
inline int64_t kv_width(const ModelConfig& config) {
  return config.kv_width();
}
inline int64_t head_dim(const ModelConfig& config) {
  return config.head_dim;
}
inline int64_t ffn(const ModelConfig& config) {
  return config.ffn;
}
inline bool attention_bias(const ModelConfig& config) {
  return config.attention_bias;
}
inline bool ffn_bias(const ModelConfig& config) {
  return config.ffn_bias;
}
inline bool tied(const ModelConfig& config) {
  return config.tied_head;
}
inline bool untied(const ModelConfig& config) {
  return !config.tied_head;
}

// clang-format off
inline constexpr auto kOuterTensors = std::to_array<TensorRule>({
    {"model.embed_tokens.weight",                             "token_embd.weight",               embedding,      vocab,       hidden,      none, nullptr},
    {"model.norm.weight",                                     "output_norm.weight",              final_norm,     hidden,      nullptr,     none, nullptr},
    {"lm_head.weight",                                        "output.weight",                   head,           vocab,       hidden,      none, untied},
    {"model.embed_tokens.weight",                             "token_embd.weight",               head,           vocab,       hidden,      none, tied},
});

inline constexpr auto kAttentionTensors = std::to_array<TensorRule>({
    {"model.layers.{layer}.input_layernorm.weight",           "blk.{layer}.attn_norm.weight",    attention_norm, hidden,      nullptr,     none, nullptr},
    {"model.layers.{layer}.self_attn.q_proj.weight",          "blk.{layer}.attn_q.weight",       qkv,            query_width, hidden,      rows, nullptr},
    {"model.layers.{layer}.self_attn.k_proj.weight",          "blk.{layer}.attn_k.weight",       qkv,            kv_width,    hidden,      rows, nullptr},
    {"model.layers.{layer}.self_attn.v_proj.weight",          "blk.{layer}.attn_v.weight",       qkv,            kv_width,    hidden,      rows, nullptr},
    {"model.layers.{layer}.self_attn.o_proj.weight",          "blk.{layer}.attn_output.weight",  attention_out,  hidden,      query_width, cols, nullptr},
});

inline constexpr auto kAttentionBiases = std::to_array<TensorRule>({
    {"model.layers.{layer}.self_attn.q_proj.bias",            "blk.{layer}.attn_q.bias",         qkv_bias,       query_width, nullptr,     rows, attention_bias},
    {"model.layers.{layer}.self_attn.k_proj.bias",            "blk.{layer}.attn_k.bias",         qkv_bias,       kv_width,    nullptr,     rows, attention_bias},
    {"model.layers.{layer}.self_attn.v_proj.bias",            "blk.{layer}.attn_v.bias",         qkv_bias,       kv_width,    nullptr,     rows, attention_bias},
    {"model.layers.{layer}.self_attn.o_proj.bias",            "blk.{layer}.attn_output.bias",    attention_out_bias, hidden,  nullptr,     none, attention_bias},
});

inline constexpr auto kFeedForwardBiases = std::to_array<TensorRule>({
    {"model.layers.{layer}.mlp.gate_proj.bias",               "blk.{layer}.ffn_gate.bias",       gate_up_bias,   ffn,         nullptr,     rows, ffn_bias},
    {"model.layers.{layer}.mlp.up_proj.bias",                 "blk.{layer}.ffn_up.bias",         gate_up_bias,   ffn,         nullptr,     rows, ffn_bias},
    {"model.layers.{layer}.mlp.down_proj.bias",               "blk.{layer}.ffn_down.bias",       down_bias,      hidden,      nullptr,     none, ffn_bias},
});

inline constexpr auto kDenseFeedForwardTensors = std::to_array<TensorRule>({
    {"model.layers.{layer}.post_attention_layernorm.weight",  "blk.{layer}.ffn_norm.weight",     ffn_norm,       hidden,      nullptr,     none, nullptr},
    {"model.layers.{layer}.mlp.gate_proj.weight",             "blk.{layer}.ffn_gate.weight",     gate_up,        ffn,         hidden,      rows, nullptr},
    {"model.layers.{layer}.mlp.up_proj.weight",               "blk.{layer}.ffn_up.weight",       gate_up,        ffn,         hidden,      rows, nullptr},
    {"model.layers.{layer}.mlp.down_proj.weight",             "blk.{layer}.ffn_down.weight",     down,           hidden,      ffn,         cols, nullptr},
});
// clang-format on

}  // namespace tessera::architectures
