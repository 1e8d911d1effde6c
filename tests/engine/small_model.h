#pragma once

#include "kernels/kv_policy.h"
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

// Thresholds high enough to demote and drop in texts as short as a small model's.
inline KvPreset lossy(const char* name) {
  KvPreset preset = *find_kv_preset(name);
  preset.policy.alpha_high = 1.5f;
  preset.policy.alpha_low = 0.5f;
  preset.policy.sinks = 2;
  return preset;
}

// Keys of what leaves the newest tokens are pruned by what the window's queries look at.
inline KvPreset output_aware() {
  KvPreset preset = *find_kv_preset("mustafar-50");
  preset.policy.key_score = KvKeyScore::output_aware;
  return preset;
}

}  // namespace tessera
