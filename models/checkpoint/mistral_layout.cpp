#include "models/checkpoint/mistral_layout.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "files/json_fields.h"
#include "models/config/config_limits.h"

namespace tessera {
namespace {

using namespace config_limits;

constexpr char kOriginalContext[] = "original_max_position_embeddings";
constexpr int32_t kBegin = 1;  // <s> of every tokenizer of Mistral's
constexpr int32_t kEnd = 2;    // </s>

struct Name {
  const char* own;  // at the end of a name; layers have "layers.N." before it
  const char* hugging_face;
};

constexpr Name kNames[] = {
    {"tok_embeddings.weight", "model.embed_tokens.weight"},
    {"norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
};

constexpr Name kLayerNames[] = {
    {"attention_norm.weight", "input_layernorm.weight"},
    {"attention.wq.weight", "self_attn.q_proj.weight"},
    {"attention.wk.weight", "self_attn.k_proj.weight"},
    {"attention.wv.weight", "self_attn.v_proj.weight"},
    {"attention.wo.weight", "self_attn.o_proj.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"feed_forward.w1.weight", "mlp.gate_proj.weight"},
    {"feed_forward.w2.weight", "mlp.down_proj.weight"},
    {"feed_forward.w3.weight", "mlp.up_proj.weight"},
    {"feed_forward.gate.weight", "block_sparse_moe.gate.weight"},
};

constexpr char kOwnExperts[] = ".feed_forward.experts.";

constexpr const char* kImageTensors[] = {"vision_encoder.", "vision_language_adapter.",
                                         "patch_merger.", "pre_mm_projector_norm."};

absl::Status unimplemented(const JsonFields& fields, const char* field, const char* what) {
  return absl::UnimplementedError(
      absl::StrCat(fields.path(), ": ", field, ": ", what, " not supported"));
}

absl::Status refuse_what_we_lack(const JsonFields& fields) {
  if (fields.has("quantization")) {
    return unimplemented(fields, "quantization", "quantised weights in this form are");
  }
  for (const char* field : {"q_lora_rank", "kv_lora_rank"}) {
    if (fields.has(field)) {
      return unimplemented(fields, field, "multi-head latent attention (MLA) is");
    }
  }
  return absl::OkStatus();
}

// Mixtral's experts. Other mixtures have further fields.
absl::Status read_experts(const nlohmann::json& object, ModelConfig& config) {
  JsonFields fields(object, absl::StrCat(kMistralParams, ": moe"));
  for (const auto& [field, value] : object.items()) {
    if (field != "num_experts" && field != "num_experts_per_tok") {
      return unimplemented(fields, field.c_str(), "other experts than Mixtral's are");
    }
  }
  config.architecture = "MixtralForCausalLM";
  config.experts = config.own_experts = fields.integer("num_experts", 1, kMaxExperts);
  config.chosen_experts = fields.integer("num_experts_per_tok", 1, std::max(config.experts, 1));
  config.normalise_experts = true;
  return fields.status();
}

// YaRN without growth of cosines and sines, unless apply_scale is true.
absl::Status read_yarn(JsonFields fields, RopeScaling& scaling) {
  scaling.kind = RopeScaling::Kind::yarn;
  scaling.factor = fields.number("factor", 1, kMaxRopeFactor);
  scaling.original_context = fields.integer(kOriginalContext, 1, kMaxContext);
  scaling.beta_fast = fields.number_or("beta", 32, 1e-3, 1e6);
  scaling.beta_slow = fields.number_or("alpha", 1, 1e-3, 1e6);
  if (fields.boolean_or("apply_scale", false)) {
    scaling.attention_factor = 0.1f * std::log(scaling.factor) + 1;
  }
  return fields.status();
}

absl::Status read_rope(JsonFields& fields, ModelConfig& config) {
  config.rope_theta = fields.number_or("rope_theta", 10000, 1, kMaxRopeTheta);
  RopeScaling& scaling = config.rope_scaling;
  if (const nlohmann::json* yarn = fields.object_or_null("yarn"); yarn != nullptr) {
    TESSERA_RETURN_IF_ERROR(
        read_yarn(JsonFields(*yarn, absl::StrCat(fields.path(), ": yarn")), scaling));
  }
  if (const auto* growth = fields.object_or_null("llama_4_scaling"); growth != nullptr) {
    JsonFields own(*growth, absl::StrCat(fields.path(), ": llama_4_scaling"));
    scaling.query_growth = own.number("beta", 0, 100);
    const int32_t original = own.integer(kOriginalContext, 1, kMaxContext);
    TESSERA_RETURN_IF_ERROR(own.status());
    if (scaling.kind == RopeScaling::Kind::yarn && scaling.original_context != original) {
      return unimplemented(fields, "llama_4_scaling", "another original context than YaRN's is");
    }
    scaling.original_context = original;
  }
  return fields.status();
}

}  // namespace

absl::StatusOr<ModelConfig> parse_mistral_params(std::string_view params_json) {
  TESSERA_ASSIGN_OR_RETURN(const nlohmann::json object,
                           parse_strict_json(params_json, kMistralParams));
  if (!object.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(kMistralParams, ": is not a JSON object"));
  }
  JsonFields fields(object, kMistralParams);
  TESSERA_RETURN_IF_ERROR(refuse_what_we_lack(fields));
  ModelConfig config;
  config.architecture = "Ministral3ForCausalLM";
  config.vocab = fields.integer("vocab_size", kEnd + 1, kMaxVocab);
  config.hidden = fields.integer("dim", 1, kMaxWidth);
  config.layers = fields.integer("n_layers", 1, kMaxLayers);
  config.heads = fields.integer("n_heads", 1, kMaxHeads);
  config.kv_heads = fields.integer_or("n_kv_heads", config.heads, 1, kMaxHeads);
  config.head_dim = fields.integer("head_dim", 1, kMaxWidth);
  config.ffn = fields.integer("hidden_dim", 1, kMaxWidth);
  config.norm_epsilon = fields.number("norm_eps", kMinNormEpsilon, kMaxNormEpsilon);
  config.tied_head = fields.boolean_or("tied_embeddings", false);
  config.sliding_window = fields.integer_or("sliding_window", 0, 1, kMaxContext);
  config.context =
      fields.integer_or("max_position_embeddings",
                        fields.integer_or("max_seq_len", 128'000, 1, kMaxContext), 1, kMaxContext);
  config.bos_id = kBegin;
  config.eos_ids = {kEnd};
  TESSERA_RETURN_IF_ERROR(fields.status());
  if (config.heads % config.kv_heads != 0) fields.refuse("n_kv_heads", "does not divide n_heads");
  if (config.head_dim > kMaxHeadDim || config.head_dim % kHeadDimMultiple != 0) {
    fields.refuse("head_dim", absl::StrCat("is ", config.head_dim, ", expected a multiple of ",
                                           kHeadDimMultiple, " up to ", kMaxHeadDim));
  }
  TESSERA_RETURN_IF_ERROR(fields.status());
  if (const nlohmann::json* moe = fields.object_or_null("moe"); moe != nullptr) {
    TESSERA_RETURN_IF_ERROR(read_experts(*moe, config));
  }
  TESSERA_RETURN_IF_ERROR(read_rope(fields, config));
  return config;
}

std::optional<std::string> name_of_mistral_tensor(const std::string& name) {
  const auto begins = [&](const char* beginning) { return name.starts_with(beginning); };
  if (std::ranges::any_of(kImageTensors, begins)) return std::nullopt;
  for (const Name& one : kNames) {
    if (name == one.own) return one.hugging_face;
  }
  if (name.starts_with("layers.") && absl::StrContains(name, kOwnExperts)) {
    return absl::StrCat("model.",
                        absl::StrReplaceAll(name, {{kOwnExperts, ".block_sparse_moe.experts."}}));
  }
  for (const Name& one : kLayerNames) {
    if (name.starts_with("layers.") && name.ends_with(std::string(".") + one.own)) {
      return absl::StrCat("model.", absl::StripSuffix(name, one.own), one.hugging_face);
    }
  }
  return name;
}

bool is_interleaved_mistral_tensor(const std::string& name) {
  return name.ends_with(".attention.wq.weight") || name.ends_with(".attention.wk.weight");
}

}  // namespace tessera
