#pragma once

#include "models/architectures/llama.h"

namespace tessera::architectures {

// A Llama with a sliding window.
inline constexpr Architecture kMistral{.name = "MistralForCausalLM",
                                       .attention = attend,
                                       .feed_forward = dense_feed_forward,
                                       .tensors = kLlamaTensors,
                                       .config = {.default_kv_heads = 8,
                                                  .sliding_window = SlidingWindowRule::field,
                                                  .default_sliding_window = 4096},
                                       .gguf = {.name = "llama", .interleaves_heads = true}};

}  // namespace tessera::architectures
