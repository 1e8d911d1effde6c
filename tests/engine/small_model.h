#pragma once

#include "engine/kv/kv_presets.h"
#include "models/config/model_config.h"
#include "tests/engine/kv_named.h"

namespace tessera {

// Returns: a model that is fast to compute and covers the cases of an engine: several layers,
// grouped query heads, and an end-of-sequence token.
inline ModelConfig small_model(int32_t context, const char* architecture = "LlamaForCausalLM") {
  ModelConfig config;
  config.architecture = architecture;
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

// Returns: a preset whose thresholds demote and drop tokens even in short texts of a small model.
inline KvPreset lossy(const char* name) {
  KvPreset preset = kv_named(name);
  if (preset.policy.keep.is<KeepByThresholds>()) {
    preset.policy.keep = KeepByThresholds{.alpha_high = 1.5f, .alpha_low = 0.5f};
  }
  preset.policy.sinks = 2;
  return preset;
}

// Returns: a preset that replays sections of `tokens` tokens, and keeps half of their pages.
inline KvPreset short_sections(int32_t tokens, const char* like = kReplaying) {
  KvPreset preset = kv_named(like);
  preset.policy.section = tokens;
  return preset;
}

// Returns: a preset that prunes keys older than the newest tokens, by output-aware scores from the
// queries in the residual buffer.
inline KvPreset output_aware() {
  KvPreset preset = *find_kv_preset("mustafar-70");
  preset.policy.key_score = KvKeyScore::output_aware;
  return preset;
}

}  // namespace tessera
