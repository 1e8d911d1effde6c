#pragma once

#include "models/architectures/llama.h"

namespace tessera::architectures {

inline int64_t query_and_kv_width(const ModelConfig& config) {
  return query_width(config) + kv_width(config);
}
inline int64_t qkv_width(const ModelConfig& config) {
  return query_width(config) + 2 * kv_width(config);
}
inline int64_t no_rows(const ModelConfig&) {
  return 0;
}
inline int64_t gate_up_width(const ModelConfig& config) {
  return 2 * ffn(config);
}

// clang-format off
inline constexpr auto kPhi3Tensors = joined(kOuterTensors, std::to_array<TensorRule>({
    {"model.layers.{layer}.input_layernorm.weight",          "blk.{layer}.attn_norm.weight",   attention_norm, hidden,      nullptr,     none, nullptr},
    {"model.layers.{layer}.self_attn.qkv_proj.weight",       "blk.{layer}.attn_qkv.weight",    qkv,            query_width, hidden,      rows, nullptr, qkv_width,     no_rows},
    {"model.layers.{layer}.self_attn.qkv_proj.weight",       "blk.{layer}.attn_qkv.weight",    qkv,            kv_width,    hidden,      rows, nullptr, qkv_width,     query_width},
    {"model.layers.{layer}.self_attn.qkv_proj.weight",       "blk.{layer}.attn_qkv.weight",    qkv,            kv_width,    hidden,      rows, nullptr, qkv_width,     query_and_kv_width},
    {"model.layers.{layer}.self_attn.o_proj.weight",         "blk.{layer}.attn_output.weight", attention_out,  hidden,      query_width, cols, nullptr},
    {"model.layers.{layer}.post_attention_layernorm.weight", "blk.{layer}.ffn_norm.weight",    ffn_norm,       hidden,      nullptr,     none, nullptr},
    {"model.layers.{layer}.mlp.gate_up_proj.weight",         "blk.{layer}.ffn_up.weight",      gate_up,        ffn,         hidden,      rows, nullptr, gate_up_width, no_rows},
    {"model.layers.{layer}.mlp.gate_up_proj.weight",         "blk.{layer}.ffn_up.weight",      gate_up,        ffn,         hidden,      rows, nullptr, gate_up_width, ffn},
    {"model.layers.{layer}.mlp.down_proj.weight",            "blk.{layer}.ffn_down.weight",    down,           hidden,      ffn,         cols, nullptr},
}));
// clang-format on

// A Llama whose q, k and v are one tensor, and gate and up another.
inline constexpr Architecture kPhi3{
    .name = "Phi3ForCausalLM",
    .attention = attend,
    .feed_forward = dense_feed_forward,
    .tensors = kPhi3Tensors,
    .config = {.sliding_window = SlidingWindowRule::field, .partial_rotary = true},
    .gguf = {.name = "phi3"}};

}  // namespace tessera::architectures
