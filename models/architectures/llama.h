#pragma once

#include "models/architectures/architecture.h"
#include "models/architectures/tensors.h"

namespace tessera::architectures {

inline constexpr auto kLlamaTensors =
    joined(joined(kOuterTensors, kAttentionTensors), kDenseFeedForwardTensors);

inline constexpr Architecture kLlama{.name = "LlamaForCausalLM",
                                     .attention = attend,
                                     .feed_forward = dense_feed_forward,
                                     .tensors = kLlamaTensors,
                                     .config = {},
                                     .gguf = {.name = "llama", .interleaves_heads = true}};

}  // namespace tessera::architectures
