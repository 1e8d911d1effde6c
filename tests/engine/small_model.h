#pragma once

#include "models/config.h"

namespace tessera {

// A model that is computed in no time and has what engines must get right: layers, groups of query
// heads, and an end of text.
inline ModelConfig small_model(int32_t context) {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.vocab = 97;
  config.hidden = 32;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 32;
  config.ffn = 48;
  config.context = context;
  config.eos_ids = {2};
  return config;
}

}  // namespace tessera
