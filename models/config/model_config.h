#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/kv/head_profile.h"
#include "kernels/ops/layers.h"
#include "models/config/rope_scaling.h"

namespace tessera {

// Differences between the attention of layers.
struct LayerKind {
  bool windowed = true;  // where the model has a sliding window
  bool rotated = true;   // false: queries and keys have no RoPE

  bool operator==(const LayerKind&) const = default;
};

// Granite's factors.
struct Multipliers {
  float embedding = 1;       // of the embedding's rows
  float residual = 1;        // of a block's output, in the residual stream
  float attention = 0;       // of q . k; 0: 1 / sqrt(head_dim)
  float logits_divisor = 1;  // of the logits

  bool operator==(const Multipliers&) const = default;
};

// Validated contents of config.json and generation_config.json of a Hugging Face directory, or of
// the metadata of a GGUF file.
struct ModelConfig {
  std::string architecture;  // a name of models/architectures/table.cpp
  int32_t vocab = 0;
  int32_t hidden = 0;
  int32_t layers = 0;
  int32_t heads = 0;                   // query heads
  int32_t kv_heads = 0;                // divides heads
  int32_t head_dim = 0;                // even
  int32_t rotary_dim = 0;              // elements of a head that RoPE rotates, even; 0: all
  int32_t ffn = 0;                     // width of the SwiGLU's inner layer, or of each expert's
  int32_t experts = 0;                 // of each layer's feed-forward block, on all ranks; 0: dense
  int32_t own_experts = 0;             // those of one rank
  int32_t chosen_experts = 0;          // of each token
  bool normalise_experts = false;      // the weights of a token's experts sum to 1
  int32_t shared_ffn = 0;              // width of an expert that serves every token; 0: none
  bool shared_gate = false;            // its output has a factor for each token
  int32_t context = 0;                 // max_position_embeddings, tokens
  int32_t sliding_window = 0;          // sliding window in tokens; 0: none
  std::vector<LayerKind> layer_kinds;  // [layers]; empty: all layers are alike
  float norm_epsilon = 1e-5f;
  float rope_theta = 10000;
  RopeScaling rope_scaling;
  float local_rope_theta = 0;  // of the windowed layers, without scaling; 0: that of all
  Activation activation = Activation::silu;
  bool attention_bias = false;  // of q, k, v and attention's output; Qwen2's own are always there
  bool ffn_bias = false;        // of gate, up and down
  Multipliers multipliers;
  bool tied_head = false;
  int32_t bos_id = -1;           // -1: none
  std::vector<int32_t> eos_ids;  // any of them ends a generation
  // Profiles of the whole model, [layers, KV heads on all ranks]; empty: none is beside the
  // checkpoint.
  std::vector<HeadProfile> head_profiles;

  // Returns: the sliding window of a layer; 0: none.
  int32_t window_of(int32_t layer) const { return kind_of(layer).windowed ? sliding_window : 0; }
  // Returns: true if a layer's queries and keys are rotated.
  bool rotates(int32_t layer) const { return kind_of(layer).rotated; }
  // Returns: true if a layer's RoPE has local_rope_theta.
  bool rotates_locally(int32_t layer) const {
    return local_rope_theta > 0 && kind_of(layer).windowed;
  }
  LayerKind kind_of(int32_t layer) const {
    return layer_kinds.empty() ? LayerKind{} : layer_kinds.at(static_cast<size_t>(layer));
  }
  // Returns: the elements of a head that RoPE rotates, the first ones.
  int32_t rotary_width() const { return rotary_dim > 0 ? rotary_dim : head_dim; }
  int32_t query_width() const { return heads * head_dim; }
  int32_t kv_width() const { return kv_heads * head_dim; }
};

}  // namespace tessera
