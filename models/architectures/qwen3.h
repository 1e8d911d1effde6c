#pragma once

#include "models/architectures/llama.h"

namespace tessera::architectures {

// clang-format off
inline constexpr auto kQwen3Norms = std::to_array<TensorRule>({
    {"model.layers.{layer}.self_attn.q_norm.weight",          "blk.{layer}.attn_q_norm.weight",  query_norm,     head_dim,    nullptr,     none, nullptr},
    {"model.layers.{layer}.self_attn.k_norm.weight",          "blk.{layer}.attn_k_norm.weight",  key_norm,       head_dim,    nullptr,     none, nullptr},
});
// clang-format on

inline constexpr auto kQwen3Tensors = joined(joined(kLlamaTensors, kQwen3Norms), kAttentionBiases);

// A Llama with a norm of each head of q and of k.
inline constexpr Architecture kQwen3{
    .name = "Qwen3ForCausalLM",
    .attention = attend_with_qk_norm,
    .feed_forward = dense_feed_forward,
    .tensors = kQwen3Tensors,
    .config = {.default_kv_heads = 32,
               .default_head_dim = 128,
               .sliding_window = SlidingWindowRule::switched_by_layer,
               .default_sliding_window = 4096,
               .attention_bias = true},
    .gguf = {.name = "qwen3"}};

}  // namespace tessera::architectures
