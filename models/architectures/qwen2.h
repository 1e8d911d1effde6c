#pragma once

#include "models/architectures/llama.h"

namespace tessera::architectures {

// clang-format off
inline constexpr auto kQwen2Biases = std::to_array<TensorRule>({
    {"model.layers.{layer}.self_attn.q_proj.bias",            "blk.{layer}.attn_q.bias",         qkv_bias,       query_width, nullptr,     rows, nullptr},
    {"model.layers.{layer}.self_attn.k_proj.bias",            "blk.{layer}.attn_k.bias",         qkv_bias,       kv_width,    nullptr,     rows, nullptr},
    {"model.layers.{layer}.self_attn.v_proj.bias",            "blk.{layer}.attn_v.bias",         qkv_bias,       kv_width,    nullptr,     rows, nullptr},
});
// clang-format on

inline constexpr auto kQwen2Tensors = joined(kLlamaTensors, kQwen2Biases);

// A Llama with biases of q, k and v.
inline constexpr Architecture kQwen2{
    .name = "Qwen2ForCausalLM",
    .attention = attend,
    .feed_forward = dense_feed_forward,
    .tensors = kQwen2Tensors,
    .config = {.default_kv_heads = 32,
               .sliding_window = SlidingWindowRule::switched_by_layer,
               .default_sliding_window = 4096},
    .gguf = {.name = "qwen2"}};

}  // namespace tessera::architectures
