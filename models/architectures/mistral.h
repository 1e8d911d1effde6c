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

// A Mistral whose layers differ in their sliding window (layer_types).
inline constexpr Architecture kMinistral{.name = "MinistralForCausalLM",
                                         .attention = attend,
                                         .feed_forward = dense_feed_forward,
                                         .tensors = kLlamaTensors,
                                         .config = {.default_kv_heads = 8,
                                                    .sliding_window = SlidingWindowRule::by_layer,
                                                    .default_sliding_window = 4096},
                                         .gguf = {}};

// A Mistral whose queries grow with the position (RopeScaling::query_growth).
inline constexpr Architecture kMinistral3{
    .name = "Ministral3ForCausalLM",
    .attention = attend,
    .feed_forward = dense_feed_forward,
    .tensors = kLlamaTensors,
    .config = {.default_kv_heads = 8,
               .default_head_dim = 128,
               .sliding_window = SlidingWindowRule::field,
               .default_rope_theta = 1e6f},
    .gguf = {.name = "mistral3", .interleaves_heads = true, .query_growth = true}};

inline constexpr const char* kMistralTextTypes[] = {"mistral", "ministral3"};
inline constexpr const char* kImageTensors[] = {"vision_tower.", "multi_modal_projector."};

// The language model of Mistral Small 3.x, Ministral 3 and Devstral Small 2. Images are refused.
inline constexpr Architecture kMistral3{.name = "Mistral3ForConditionalGeneration",
                                        .attention = attend,
                                        .feed_forward = dense_feed_forward,
                                        .tensors = kLlamaTensors,
                                        .config = {.default_kv_heads = 8,
                                                   .sliding_window = SlidingWindowRule::field,
                                                   .text_config = "text_config",
                                                   .text_types = kMistralTextTypes},
                                        .gguf = {},
                                        .prefix = "language_model.",
                                        .ignored = kImageTensors};

}  // namespace tessera::architectures
