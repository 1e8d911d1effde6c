#pragma once

#include <cmath>

#include "files/json_fields.h"
#include "models/architectures/architecture.h"
#include "models/architectures/tensors.h"
#include "models/config/config_limits.h"

namespace tessera::architectures {

inline constexpr int32_t kGemmaWindowPattern = 6;  // each sixth layer has no window

// Older files have sliding_window_pattern in the place of layer_types.
inline void read_gemma3(JsonFields& fields, ModelConfig& config) {
  if (!fields.has("layer_types")) {
    const int32_t pattern = fields.integer_or("sliding_window_pattern", kGemmaWindowPattern, 1,
                                              config_limits::kMaxLayers);
    for (int32_t layer = 1; layer <= config.layers; ++layer) {
      config.layer_kinds.push_back({.windowed = layer % pattern != 0});
    }
  }
  const float scalar = fields.number_or("query_pre_attn_scalar", 256, 1e-6, 1e6);
  config.multipliers.attention = 1 / std::sqrt(scalar);
  for (const char* cap : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (fields.has(cap)) fields.refuse(cap, "is set; capped logits are not supported");
  }
  if (fields.boolean_or("use_bidirectional_attention", false)) {
    fields.refuse("use_bidirectional_attention", "is true; only causal attention is supported");
  }
}

// The file of the 27B model has no key for its scale of queries: it divides by the width of hidden
// over heads, as llama.cpp does.
inline void derive_gemma3(ModelConfig& config) {
  constexpr int32_t kLayersOf27B = 62;
  config.multipliers.embedding = std::sqrt(static_cast<float>(config.hidden));
  if (config.multipliers.attention > 0) return;
  const int32_t width =
      config.layers == kLayersOf27B ? config.hidden / config.heads : config.head_dim;
  config.multipliers.attention = 1 / std::sqrt(static_cast<float>(width));
}

constexpr TensorRule plus_one(TensorRule rule) {
  rule.plus_one = true;
  return rule;
}

// clang-format off
inline constexpr auto kGemma3Tensors = std::to_array<TensorRule>({
    {"model.embed_tokens.weight",                                       "token_embd.weight",                      embedding,             vocab,       hidden,      none, nullptr},
    plus_one({"model.norm.weight",                                      "output_norm.weight",                     final_norm,            hidden,      nullptr,     none, nullptr}),
    {"lm_head.weight",                                                  "output.weight",                          head,                  vocab,       hidden,      none, untied},
    {"model.embed_tokens.weight",                                       "token_embd.weight",                      head,                  vocab,       hidden,      none, tied},
    plus_one({"model.layers.{layer}.input_layernorm.weight",            "blk.{layer}.attn_norm.weight",           attention_norm,        hidden,      nullptr,     none, nullptr}),
    {"model.layers.{layer}.self_attn.q_proj.weight",                    "blk.{layer}.attn_q.weight",              qkv,                   query_width, hidden,      rows, nullptr},
    {"model.layers.{layer}.self_attn.k_proj.weight",                    "blk.{layer}.attn_k.weight",              qkv,                   kv_width,    hidden,      rows, nullptr},
    {"model.layers.{layer}.self_attn.v_proj.weight",                    "blk.{layer}.attn_v.weight",              qkv,                   kv_width,    hidden,      rows, nullptr},
    plus_one({"model.layers.{layer}.self_attn.q_norm.weight",           "blk.{layer}.attn_q_norm.weight",         query_norm,            head_dim,    nullptr,     none, nullptr}),
    plus_one({"model.layers.{layer}.self_attn.k_norm.weight",           "blk.{layer}.attn_k_norm.weight",         key_norm,              head_dim,    nullptr,     none, nullptr}),
    {"model.layers.{layer}.self_attn.o_proj.weight",                    "blk.{layer}.attn_output.weight",         attention_out,         hidden,      query_width, cols, nullptr},
    plus_one({"model.layers.{layer}.post_attention_layernorm.weight",   "blk.{layer}.post_attention_norm.weight", norm_behind_attention, hidden,      nullptr,     none, nullptr}),
    plus_one({"model.layers.{layer}.pre_feedforward_layernorm.weight",  "blk.{layer}.ffn_norm.weight",            ffn_norm,              hidden,      nullptr,     none, nullptr}),
    {"model.layers.{layer}.mlp.gate_proj.weight",                       "blk.{layer}.ffn_gate.weight",            gate_up,               ffn,         hidden,      rows, nullptr},
    {"model.layers.{layer}.mlp.up_proj.weight",                         "blk.{layer}.ffn_up.weight",              gate_up,               ffn,         hidden,      rows, nullptr},
    {"model.layers.{layer}.mlp.down_proj.weight",                       "blk.{layer}.ffn_down.weight",            down,                  hidden,      ffn,         cols, nullptr},
    plus_one({"model.layers.{layer}.post_feedforward_layernorm.weight", "blk.{layer}.post_ffw_norm.weight",       norm_behind_ffn,       hidden,      nullptr,     none, nullptr}),
});
// clang-format on

constexpr ConfigRules gemma3_config(const char* text_config,
                                    std::span<const char* const> text_types) {
  return {.default_kv_heads = 4,
          .default_head_dim = 256,
          .sliding_window = SlidingWindowRule::by_layer,
          .default_sliding_window = 4096,
          .default_rope_theta = 1e6f,
          .default_tied_head = true,
          .text_config = text_config,
          .text_types = text_types,
          .local_rope = true,
          .activation = "hidden_activation",
          .default_activation = Activation::gelu_tanh,
          .read_own_fields = read_gemma3};
}

// A Qwen3 with norms of 1 + w in front of and behind each block, and windows with a RoPE of their
// own in five layers of six.
inline constexpr Architecture kGemma3{
    .name = "Gemma3ForCausalLM",
    .attention = attend_between_norms,
    .feed_forward = dense_feed_forward_between_norms,
    .tensors = kGemma3Tensors,
    .config = gemma3_config(nullptr, {}),
    .gguf = {.name = "gemma3", .unwindowed_every = kGemmaWindowPattern},
    .derive = derive_gemma3};

inline constexpr const char* kGemma3TextTypes[] = {"gemma3_text"};
inline constexpr const char* kGemma3ImageTensors[] = {"vision_tower.", "multi_modal_projector."};

// The language model of Gemma 3 from 4B on. Images are refused.
inline constexpr Architecture kGemma3WithImages{
    .name = "Gemma3ForConditionalGeneration",
    .attention = attend_between_norms,
    .feed_forward = dense_feed_forward_between_norms,
    .tensors = kGemma3Tensors,
    .config = gemma3_config("text_config", kGemma3TextTypes),
    .gguf = {},
    .prefix = "language_model.",
    .ignored = kGemma3ImageTensors,
    .derive = derive_gemma3};

}  // namespace tessera::architectures
