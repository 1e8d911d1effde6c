#include "models/checkpoint/config_json.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "models/architectures/architecture.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

using nlohmann::json;

constexpr char kOriginal[] = "original_max_position_embeddings";

// Returns: "llama" for "LlamaForCausalLM". transformers selects the model class by this name.
std::string model_type(const std::string& architecture) {
  const std::string lower = absl::AsciiStrToLower(absl::StripSuffix(
      absl::StripSuffix(architecture, "ForCausalLM"), "ForConditionalGeneration"));
  if (lower == "qwen2moe") return "qwen2_moe";
  if (lower == "qwen3moe") return "qwen3_moe";
  return architecture == "Gemma3ForCausalLM" ? "gemma3_text" : lower;
}

json rope_json(const RopeScaling& scaling) {
  switch (scaling.kind) {
    case RopeScaling::Kind::none:
      return nullptr;
    case RopeScaling::Kind::linear:
      return {{"rope_type", "linear"}, {"factor", scaling.factor}};
    case RopeScaling::Kind::dynamic:
      return {{"rope_type", "dynamic"}, {"factor", scaling.factor}};
    case RopeScaling::Kind::yarn:
      return {{"rope_type", "yarn"},
              {"factor", scaling.factor},
              {"beta_fast", scaling.beta_fast},
              {"beta_slow", scaling.beta_slow},
              {"truncate", scaling.whole_pairs},
              {"attention_factor", scaling.attention_factor},
              {kOriginal, scaling.original_context}};
    case RopeScaling::Kind::longrope:
      return {{"rope_type", "longrope"},
              {"factor", scaling.factor},
              {"short_factor", scaling.short_factors},
              {"long_factor", scaling.long_factors},
              {"attention_factor", scaling.attention_factor}};
    case RopeScaling::Kind::factors:
      TESSERA_CHECK(false, "config.json has no spelling for RoPE factors");
    case RopeScaling::Kind::llama3:
      break;
  }
  return {{"rope_type", "llama3"},
          {"factor", scaling.factor},
          {"low_freq_factor", scaling.low_freq_factor},
          {"high_freq_factor", scaling.high_freq_factor},
          {kOriginal, scaling.original_context}};
}

const char* activation_name(Activation activation) {
  switch (activation) {
    case Activation::silu:
      break;
    case Activation::gelu:
      return "gelu";
    case Activation::gelu_tanh:
      return "gelu_pytorch_tanh";
  }
  return "silu";
}

void add_layer_kinds(const ModelConfig& config, json& object) {
  if (config.layer_kinds.empty()) return;
  json types = json::array();
  json rotated = json::array();
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    types.push_back(config.window_of(layer) > 0 ? "sliding_attention" : "full_attention");
    rotated.push_back(config.rotates(layer) ? 1 : 0);
  }
  object["layer_types"] = std::move(types);
  const auto is_rotated = [](const LayerKind& kind) { return kind.rotated; };
  if (!std::ranges::all_of(config.layer_kinds, is_rotated)) {
    object["no_rope_layers"] = std::move(rotated);
  }
}

void add_experts(const ModelConfig& config, json& object) {
  if (config.experts == 0) return;
  object[config.shared_gate ? "num_experts" : "num_local_experts"] = config.experts;
  object["num_experts_per_tok"] = config.chosen_experts;
  object["moe_intermediate_size"] = config.ffn;
  object["norm_topk_prob"] = config.normalise_experts;
  if (config.shared_ffn > 0) {
    object[config.shared_gate ? "shared_expert_intermediate_size" : "shared_intermediate_size"] =
        config.shared_ffn;
  }
}

void add_multipliers(const Multipliers& multipliers, json& object) {
  if (multipliers == Multipliers{}) return;
  object["embedding_multiplier"] = multipliers.embedding;
  object["residual_multiplier"] = multipliers.residual;
  object["attention_multiplier"] = multipliers.attention;
  object["logits_scaling"] = multipliers.logits_divisor;
}

json language_json(const ModelConfig& config) {
  json object = {
      {"vocab_size", config.vocab},
      {"hidden_size", config.hidden},
      {"num_hidden_layers", config.layers},
      {"num_attention_heads", config.heads},
      {"num_key_value_heads", config.kv_heads},
      {"head_dim", config.head_dim},
      {"intermediate_size", config.ffn},
      {"max_position_embeddings", config.context},
      {"rms_norm_eps", config.norm_epsilon},
      {"rope_theta", config.rope_theta},
      {"rope_scaling", rope_json(config.rope_scaling)},
      {"tie_word_embeddings", config.tied_head},
      {architecture_of(config).config.activation, activation_name(config.activation)},
      {"sliding_window", nullptr},
      {"pad_token_id", nullptr},  // transformers' defaults may lie outside the vocabulary
      {"eos_token_id", config.eos_ids}};
  if (config.sliding_window > 0) {
    object["sliding_window"] = config.sliding_window;
    object["use_sliding_window"] = true;
  }
  if (config.rope_scaling.query_growth > 0) {
    object["rope_scaling"]["llama_4_scaling_beta"] = config.rope_scaling.query_growth;
  }
  if (config.rope_scaling.kind == RopeScaling::Kind::longrope) {
    object[kOriginal] = config.rope_scaling.original_context;  // where Phi-3 has it
  }
  if (config.rotary_dim > 0) {
    object["partial_rotary_factor"] =
        static_cast<double>(config.rotary_dim) / static_cast<double>(config.head_dim);
  }
  if (config.attention_bias) object["attention_bias"] = true;
  if (config.ffn_bias) object["mlp_bias"] = true;
  if (config.bos_id >= 0) object["bos_token_id"] = config.bos_id;
  add_layer_kinds(config, object);
  add_experts(config, object);
  if (config.local_rope_theta > 0) {
    object["rope_local_base_freq"] = config.local_rope_theta;
    const float scale = config.multipliers.attention;
    object["query_pre_attn_scalar"] = std::lround(1 / (scale * scale));
  } else {
    add_multipliers(config.multipliers, object);
  }
  return object;
}

}  // namespace

std::string model_config_json(const ModelConfig& config) {
  json object = language_json(config);
  object["model_type"] = model_type(config.architecture);
  if (const char* key = architecture_of(config).config.text_config; key != nullptr) {
    const bool grows = config.rope_scaling.query_growth > 0;
    object["model_type"] = grows ? "ministral3" : architecture_of(config).config.text_types.front();
    object = {{key, object},
              {"model_type", model_type(config.architecture)},
              {"tie_word_embeddings", config.tied_head}};
  }
  object["architectures"] = {config.architecture};
  return object.dump(2);
}

}  // namespace tessera
