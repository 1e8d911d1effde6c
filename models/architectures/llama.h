#pragma once

#include "models/architectures/architecture.h"
#include "models/architectures/tensors.h"

namespace tessera::architectures {

inline constexpr auto kLlamaTensors =
    joined(joined(kOuterTensors, kAttentionTensors), kDenseFeedForwardTensors);

// Those of an architecture whose config.json has attention_bias and mlp_bias.
inline constexpr auto kBiasedLlamaTensors =
    joined(joined(kLlamaTensors, kAttentionBiases), kFeedForwardBiases);

inline constexpr Architecture kLlama{.name = "LlamaForCausalLM",
                                     .attention = attend,
                                     .feed_forward = dense_feed_forward,
                                     .tensors = kBiasedLlamaTensors,
                                     .config = {.attention_bias = true, .mlp_bias = true},
                                     .gguf = {.name = "llama", .interleaves_heads = true}};

}  // namespace tessera::architectures
