#pragma once

#include "files/json_fields.h"
#include "models/architectures/llama.h"
#include "models/config/config_limits.h"

namespace tessera::architectures {

// The list no_rope_layers has a 0 for a layer without RoPE. Without the list it is each
// no_rope_layer_interval-th layer.
inline void read_layers_without_rope(JsonFields& fields, ModelConfig& config) {
  const std::vector<int32_t> rotated = fields.integers_or_none("no_rope_layers", 0, 1);
  const int32_t interval = fields.integer_or("no_rope_layer_interval", 4, 1, config.layers + 1);
  if (!rotated.empty() && std::cmp_not_equal(rotated.size(), config.layers)) {
    fields.refuse("no_rope_layers", "has not one number for each layer");
    return;
  }
  const bool listed = fields.has("layer_types");
  if (!listed && fields.boolean_or("use_sliding_window", false)) {
    config.sliding_window = fields.integer_or("sliding_window", 0, 1, config_limits::kMaxContext);
  }
  config.layer_kinds.resize(static_cast<size_t>(config.layers));
  for (size_t i = 0; i < config.layer_kinds.size(); ++i) {
    LayerKind& kind = config.layer_kinds[i];
    kind.rotated = rotated.empty() ? (i + 1) % static_cast<size_t>(interval) != 0 : rotated[i] != 0;
    if (!listed) kind.windowed = !kind.rotated;
  }
}

// A Llama with layers without RoPE.
inline constexpr Architecture kSmolLm3{
    .name = "SmolLM3ForCausalLM",
    .attention = attend,
    .feed_forward = dense_feed_forward,
    .tensors = kBiasedLlamaTensors,
    .config = {.sliding_window = SlidingWindowRule::switched_by_layer,
               .default_rope_theta = 2e6f,
               .default_tied_head = true,
               .attention_bias = true,
               .mlp_bias = true,
               .read_own_fields = read_layers_without_rope},
    .gguf = {.name = "smollm3", .interleaves_heads = true, .unrotated_every = 4}};

}  // namespace tessera::architectures
