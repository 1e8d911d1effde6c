#pragma once

#include "files/json_fields.h"
#include "models/architectures/llama.h"

namespace tessera::architectures {

inline void read_multipliers(JsonFields& fields, ModelConfig& config) {
  constexpr double kLeast = 1e-6;
  constexpr double kMost = 1e6;
  config.multipliers = {.embedding = fields.number_or("embedding_multiplier", 1, kLeast, kMost),
                        .residual = fields.number_or("residual_multiplier", 1, kLeast, kMost),
                        .attention = fields.number_or("attention_multiplier", 1, kLeast, kMost),
                        .logits_divisor = fields.number_or("logits_scaling", 1, kLeast, kMost)};
}

// A Llama with four multipliers.
inline constexpr Architecture kGranite{
    .name = "GraniteForCausalLM",
    .attention = attend,
    .feed_forward = dense_feed_forward,
    .tensors = kBiasedLlamaTensors,
    .config = {.attention_bias = true, .mlp_bias = true, .read_own_fields = read_multipliers},
    .gguf = {.name = "granite", .interleaves_heads = true, .multipliers = true}};

}  // namespace tessera::architectures
