#include "models/gguf/gguf_config.h"

#include <algorithm>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "files/json_fields.h"
#include "models/architectures/architecture.h"
#include "models/config/config_limits.h"
#include "models/gguf/end_tokens.h"
#include "models/gguf/gguf_rope.h"

namespace tessera {
namespace {

using namespace config_limits;

absl::StatusOr<const Architecture*> read_architecture(JsonFields& fields) {
  const std::string name = fields.text("general.architecture");
  TESSERA_RETURN_IF_ERROR(fields.status());
  // Writers of files without experts may give a count of 0.
  const std::string count = name + ".expert_count";
  const bool experts = fields.integer_or(count.c_str(), 0, 0, kMaxExperts) > 0;
  TESSERA_RETURN_IF_ERROR(fields.status());
  const GgufParts parts{
      .experts = experts,
      .sliding_window = fields.has((name + ".attention.sliding_window").c_str()),
      .shared_expert = fields.has((name + ".expert_shared_feed_forward_length").c_str())};
  if (const Architecture* found = find_gguf_architecture(name, parts)) return found;
  std::set<std::string> known;
  for (const Architecture& one : supported_architectures()) {
    if (one.gguf.name != nullptr) known.insert(one.gguf.name);
  }
  std::string names;
  for (const std::string& one : known) absl::StrAppend(&names, names.empty() ? "" : ", ", one);
  return absl::UnimplementedError(absl::StrCat(fields.path(), ": the architecture ",
                                               in_quotes(name), " is not supported; supported are ",
                                               names));
}

// Reads the keys of one model's architecture, such as "llama.block_count".
class ConfigReader {
 public:
  ConfigReader(const GgufModel& model, const Architecture& architecture)
      : model_(model),
        architecture_(architecture),
        fields_(model.fields(), model.path().string()) {}

  absl::StatusOr<ModelConfig> run() {
    config_.architecture = architecture_.name;
    TESSERA_RETURN_IF_ERROR(refuse_what_we_lack());
    TESSERA_RETURN_IF_ERROR(read_vocabulary());
    TESSERA_RETURN_IF_ERROR(read_shape());
    TESSERA_RETURN_IF_ERROR(read_experts());
    TESSERA_RETURN_IF_ERROR(read_gguf_rope(model_, architecture_, fields_, config_));
    TESSERA_RETURN_IF_ERROR(read_options());
    TESSERA_RETURN_IF_ERROR(read_token_ids());
    return std::move(config_);
  }

 private:
  std::string key(const char* rest) const {
    return absl::StrCat(architecture_.gguf.name, ".", rest);
  }

  int32_t integer(const char* rest, int64_t max) {
    return fields_.integer(key(rest).c_str(), 1, max);
  }
  int32_t integer_or(const char* rest, int32_t fallback, int64_t max) {
    return fields_.integer_or(key(rest).c_str(), fallback, 1, max);
  }

  absl::Status unsupported(const std::string& what) const {
    return absl::UnimplementedError(
        absl::StrCat(fields_.path(), ": key \"", what, "\" is not supported"));
  }

  absl::Status refuse_what_we_lack() {
    const auto refuse = [&](std::initializer_list<const char*> keys) {
      for (const char* rest : keys) {
        if (fields_.has(key(rest).c_str())) return unsupported(key(rest));
      }
      return fields_.status();
    };
    if (!architecture_.gguf.multipliers) {
      TESSERA_RETURN_IF_ERROR(
          refuse({"attention.scale", "logit_scale", "residual_scale", "embedding_scale"}));
    }
    if (!architecture_.gguf.query_growth) {
      TESSERA_RETURN_IF_ERROR(refuse({"attention.temperature_scale"}));
    }
    return refuse({"attention.clamp_kqv", "attention.max_alibi_bias", "attn_logit_softcapping",
                   "final_logit_softcapping", "rope.dimension_sections",
                   "attention.sliding_window_pattern", "attention.key_length_mla"});
  }

  absl::Status read_experts() {
    const int32_t experts = fields_.integer_or(key("expert_count").c_str(), 0, 0, kMaxExperts);
    TESSERA_RETURN_IF_ERROR(fields_.status());
    if (!architecture_.gguf.experts) {
      return experts == 0 ? absl::OkStatus() : unsupported(key("expert_count"));
    }
    const GgufRules& rules = architecture_.gguf;
    if (!rules.shared_expert && fields_.has(key("expert_shared_feed_forward_length").c_str())) {
      return unsupported(key("expert_shared_feed_forward_length"));
    }
    for (const char* rest : {"expert_shared_count", "expert_group_count", "expert_weights_scale",
                             "leading_dense_block_count", "interleave_moe_layer_step"}) {
      if (fields_.has(key(rest).c_str())) return unsupported(key(rest));
    }
    constexpr int32_t kSoftmax = 1;
    if (fields_.integer_or(key("expert_gating_func").c_str(), kSoftmax, 0, 100) != kSoftmax) {
      return unsupported(key("expert_gating_func"));
    }
    config_.experts = config_.own_experts = integer("expert_count", kMaxExperts);
    config_.chosen_experts = integer("expert_used_count", std::max(config_.experts, 1));
    config_.normalise_experts =
        fields_.boolean_or(key("expert_weights_norm").c_str(), !rules.qwen2_mixture);
    const int32_t width = config_.ffn;
    const int32_t own = rules.qwen2_mixture ? width / std::max(config_.chosen_experts, 1) : width;
    config_.ffn = integer_or("expert_feed_forward_length", std::max(own, 1), kMaxWidth);
    if (rules.shared_expert) {
      config_.shared_ffn = integer_or("expert_shared_feed_forward_length", width, kMaxWidth);
      config_.shared_gate = has_tensor("ffn_gate_inp_shexp.weight");
    }
    return fields_.status();
  }

  absl::Status read_vocabulary() {
    int64_t tokens = 0;
    const GgufMetadata& metadata = model_.files().front().metadata();
    const auto list = metadata.find("tokenizer.ggml.tokens");
    if (list != metadata.end()) {
      tokens = static_cast<int64_t>(std::min<uint64_t>(list->second.size(), kMaxVocab));
    }
    config_.vocab = tokens > 0 ? integer_or("vocab_size", static_cast<int32_t>(tokens), kMaxVocab)
                               : integer("vocab_size", kMaxVocab);
    config_.tied_head = model_.find_tensor("output.weight") == nullptr;
    return fields_.status();
  }

  absl::Status read_shape() {
    config_.hidden = integer("embedding_length", kMaxWidth);
    config_.layers = integer("block_count", kMaxLayers);
    config_.heads = integer("attention.head_count", kMaxHeads);
    config_.kv_heads = integer_or("attention.head_count_kv", config_.heads, kMaxHeads);
    config_.ffn = integer("feed_forward_length", kMaxWidth);
    config_.context = integer("context_length", kMaxContext);
    config_.norm_epsilon = fields_.number(key("attention.layer_norm_rms_epsilon").c_str(),
                                          kMinNormEpsilon, kMaxNormEpsilon);
    if (architecture_.config.sliding_window == SlidingWindowRule::field ||
        architecture_.gguf.unwindowed_every > 0) {
      config_.sliding_window =
          fields_.integer_or(key("attention.sliding_window").c_str(), 0, 0, kMaxContext);
    } else if (fields_.has(key("attention.sliding_window").c_str())) {
      return unsupported(key("attention.sliding_window"));
    }
    TESSERA_RETURN_IF_ERROR(fields_.status());
    if (config_.heads % config_.kv_heads != 0) {
      fields_.refuse(key("attention.head_count_kv").c_str(),
                     absl::StrCat("is ", config_.kv_heads, ", which does not divide ",
                                  key("attention.head_count"), " ", config_.heads));
      return fields_.status();
    }
    return read_head_dim();
  }

  absl::Status read_head_dim() {
    const std::string name = key("attention.key_length");
    if (!fields_.has(name.c_str()) && config_.hidden % config_.heads != 0) {
      fields_.refuse(name.c_str(), absl::StrCat("is missing, and ", config_.heads,
                                                " heads do not divide ", config_.hidden));
    }
    config_.head_dim =
        integer_or("attention.key_length", std::max(config_.hidden / config_.heads, 1), kMaxWidth);
    const int32_t values = integer_or("attention.value_length", config_.head_dim, kMaxWidth);
    TESSERA_RETURN_IF_ERROR(fields_.status());
    if (config_.head_dim > kMaxHeadDim || config_.head_dim % kHeadDimMultiple != 0) {
      return absl::UnimplementedError(
          absl::StrCat(fields_.path(), ": heads of ", config_.head_dim,
                       " are not supported; supported are multiples of ", kHeadDimMultiple,
                       " up to ", kMaxHeadDim));
    }
    if (values != config_.head_dim) return unsupported(key("attention.value_length"));
    return absl::OkStatus();
  }

  // Files have no keys for biases, the activation, and layers without RoPE or without a window.
  absl::Status read_options() {
    config_.activation = architecture_.config.default_activation;
    config_.attention_bias = architecture_.config.attention_bias && has_tensor("attn_q.bias");
    config_.ffn_bias = architecture_.config.mlp_bias && has_tensor("ffn_gate.bias");
    if (architecture_.gguf.multipliers) read_multipliers();
    read_layer_kinds();
    TESSERA_RETURN_IF_ERROR(fields_.status());
    if (architecture_.derive != nullptr) architecture_.derive(config_);
    return absl::OkStatus();
  }
  void read_layer_kinds() {
    const GgufRules& rules = architecture_.gguf;
    if (rules.unrotated_every == 0 && rules.unwindowed_every == 0) return;
    const auto is_one_of = [](int32_t layer, int32_t every) {
      return every > 0 && layer % every == 0;
    };
    for (int32_t layer = 1; layer <= config_.layers; ++layer) {
      config_.layer_kinds.push_back({.windowed = !is_one_of(layer, rules.unwindowed_every),
                                     .rotated = !is_one_of(layer, rules.unrotated_every)});
    }
  }
  bool has_tensor(const char* rest) const {
    return model_.find_tensor(absl::StrCat("blk.0.", rest)) != nullptr;
  }
  void read_multipliers() {
    constexpr double kLeast = 1e-6;
    constexpr double kMost = 1e6;
    const auto factor = [&](const char* rest, float fallback) {
      return fields_.number_or(key(rest).c_str(), fallback, kLeast, kMost);
    };
    config_.multipliers = {.embedding = factor("embedding_scale", 1),
                           .residual = factor("residual_scale", 1),
                           .attention = factor("attention.scale", 0),
                           .logits_divisor = factor("logit_scale", 1)};
  }

  absl::Status read_token_ids() {
    config_.bos_id = fields_.integer_or("tokenizer.ggml.bos_token_id", -1, 0, config_.vocab - 1);
    TESSERA_RETURN_IF_ERROR(fields_.status());
    TESSERA_ASSIGN_OR_RETURN(config_.eos_ids, gguf_end_tokens(model_, config_.vocab));
    return absl::OkStatus();
  }

  const GgufModel& model_;
  const Architecture& architecture_;
  JsonFields fields_;
  ModelConfig config_;
};

}  // namespace

absl::StatusOr<ModelConfig> read_gguf_config(const GgufModel& model) {
  JsonFields fields(model.fields(), model.path().string());
  TESSERA_ASSIGN_OR_RETURN(const Architecture* architecture, read_architecture(fields));
  return ConfigReader(model, *architecture).run();
}

}  // namespace tessera
