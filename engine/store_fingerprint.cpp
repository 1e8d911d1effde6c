#include "engine/store_fingerprint.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "engine/kv/kv_policy_fields.h"
#include "models/config/model_config.h"

namespace tessera {
namespace {

// Changes when blocks of earlier versions are to be forgotten.
constexpr int kStoreVersion = 1;

template <class... Values>
void add(std::string& text, std::string_view name, const Values&... values) {
  absl::StrAppend(&text, std::string(name), "=");
  (absl::StrAppend(&text, values, " "), ...);
  absl::StrAppend(&text, "\n");
}

void add_model(std::string& text, const ModelConfig& config) {
  add(text, "model", config.architecture, config.vocab, config.hidden, config.layers, config.heads,
      config.kv_heads, config.head_dim, config.rotary_dim, config.ffn, config.experts,
      config.chosen_experts, config.normalise_experts, config.norm_epsilon);
  add(text, "rope", config.rope_theta, config.local_rope_theta);
  const RopeScaling& scaling = config.rope_scaling;
  add(text, "scaling", static_cast<int>(scaling.kind), scaling.factor, scaling.low_freq_factor,
      scaling.high_freq_factor, scaling.original_context, scaling.beta_fast, scaling.beta_slow,
      scaling.whole_pairs, scaling.attention_factor, scaling.query_growth);
  for (const std::vector<float>* const factors :
       {&scaling.factors, &scaling.short_factors, &scaling.long_factors}) {
    for (const float factor : *factors) {
      add(text, "factor", factor);
    }
    add(text, "factors", factors->size());
  }
  add(text, "multipliers", config.multipliers.embedding, config.multipliers.residual,
      config.multipliers.attention);
  add(text, "window", config.sliding_window);
  for (const HeadProfile& profile : config.head_profiles) {
    add(text, "profile", profile.place);
  }
  for (const LayerKind& kind : config.layer_kinds) {
    add(text, "layer", kind.windowed, kind.rotated);
  }
}

void add_pages(std::string& text, const KvArenaShape& shape) {
  add(text, "pages", shape.page_bytes, shape.sketch_bytes, shape.coded_residuals,
      shape.prefix_block_tokens, shape.layers, shape.kv_heads, shape.head_dim);
  for (const KvFormat format : shape.formats) {
    add(text, "format", name_of(format));
  }
  for (const KvSectionBlock& block : shape.section_blocks) {
    add(text, "section", int{block.tier}, block.row_pages);
  }
}

// What a section keeps depends on all fields of its policy.
void add_policy(std::string& text, const KvPolicy& policy) {
  for (const auto& [field, value] : policy_fields(policy)) {
    if (policy.replays()) {
      add(text, field, to_text(value));
    }
  }
}

}  // namespace

std::string store_fingerprint(const EngineOptions& options, const Transformer& model,
                              const Backend& backend, const KvArenaShape& shape) {
  std::string text;
  add(text, "program", TESSERA_VERSION, kStoreVersion, backend.name, backend.isa);
  add(text, "checkpoint", options.tiers.checkpoint, model.weight_formats(), model.weight_bytes());
  add(text, "context", options.context);  // some RoPE scalings depend on it
  add_model(text, model.config());
  add_pages(text, shape);
  add_policy(text, options.kv.policy);
  for (const KvPreset& preset : options.kv_also) {
    add_policy(text, preset.policy);
  }
  if (options.kv_section_step.has_value()) {
    add_policy(text, options.kv_section_step->policy);
  }
  return text;
}

}  // namespace tessera
