#include "models/checkpoint/read_model_config.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "files/json_fields.h"
#include "files/mapped_file.h"
#include "models/architectures/architecture.h"
#include "models/architectures/missing.h"
#include "models/architectures/rope_config.h"
#include "models/checkpoint/head_profile_file.h"
#include "models/checkpoint/mistral_layout.h"
#include "models/checkpoint/tokenizer_end.h"
#include "models/config/config_limits.h"
#include "models/gguf/gguf_config.h"
#include "models/quantised/method.h"

namespace tessera {
namespace {

using nlohmann::json;

using namespace config_limits;

// Error for a setting that this engine does not support. It names the setting.
absl::Status unimplemented(const JsonFields& fields, const std::string& what,
                           const std::string& instead) {
  return absl::UnimplementedError(
      absl::StrCat(fields.path(), ": ", what, " is not supported; ", instead));
}

absl::StatusOr<const Architecture*> read_architecture(JsonFields& fields) {
  const std::vector<std::string> names = fields.texts_or_none("architectures");
  TESSERA_RETURN_IF_ERROR(fields.status());
  if (names.empty()) {
    fields.refuse("architectures", "is missing");
    return fields.status();
  }
  if (const Architecture* found = find_architecture(names[0]); found != nullptr) {
    return found;
  }
  std::string known;
  for (const Architecture& architecture : supported_architectures()) {
    absl::StrAppend(&known, known.empty() ? "" : ", ", architecture.name);
  }
  const std::string missing = missing_part(names[0]);
  return unimplemented(fields, absl::StrCat("the architecture ", in_quotes(names[0])),
                       absl::StrCat(missing, missing.empty() ? "" : "; ", "supported are ", known));
}

absl::Status read_biases(JsonFields& fields, const ConfigRules& rules, ModelConfig& config) {
  config.attention_bias = fields.boolean_or("attention_bias", false);
  config.ffn_bias = fields.boolean_or("mlp_bias", false);
  TESSERA_RETURN_IF_ERROR(fields.status());
  if ((config.attention_bias && !rules.attention_bias) || (config.ffn_bias && !rules.mlp_bias)) {
    return unimplemented(
        fields, config.ffn_bias && !rules.mlp_bias ? "mlp_bias true" : "attention_bias true",
        absl::StrCat(config.architecture, " has no such field in transformers"));
  }
  return absl::OkStatus();
}

absl::Status read_activation(JsonFields& fields, const ConfigRules& rules, ModelConfig& config) {
  config.activation = rules.default_activation;
  if (!fields.has(rules.activation)) return absl::OkStatus();
  const std::string name = fields.text(rules.activation);
  TESSERA_RETURN_IF_ERROR(fields.status());
  if (name == "silu") {
    config.activation = Activation::silu;
  } else if (name == "gelu") {
    config.activation = Activation::gelu;
  } else if (name == "gelu_new" || name == "gelu_pytorch_tanh") {
    config.activation = Activation::gelu_tanh;
  } else {
    return unimplemented(fields, absl::StrCat(rules.activation, " ", in_quotes(name)),
                         "supported are \"silu\", \"gelu\", \"gelu_new\" and "
                         "\"gelu_pytorch_tanh\"");
  }
  return absl::OkStatus();
}

int32_t read_kv_heads(JsonFields& fields, const ConfigRules& rules, int32_t heads) {
  const char* key = "num_key_value_heads";
  const bool as_many =
      fields.mentions(key) || rules.default_kv_heads == ConfigRules::kAsManyAsHeads;
  return fields.integer_or(key, as_many ? heads : rules.default_kv_heads, 1, kMaxHeads);
}

int32_t read_head_dim(JsonFields& fields, const ConfigRules& rules, const ModelConfig& config) {
  const bool derived = rules.default_head_dim == ConfigRules::kHiddenOverHeads;
  if (derived && !fields.has("head_dim") && config.hidden % config.heads != 0) {
    fields.refuse("hidden_size",
                  absl::StrCat("is ", config.hidden, ", not a multiple of ", "num_attention_heads ",
                               config.heads, ", and there is no head_dim"));
  }
  const int32_t fallback = derived ? config.hidden / config.heads : rules.default_head_dim;
  return fields.integer_or("head_dim", fallback, 1, kMaxWidth);
}

absl::Status read_shape(JsonFields& fields, const ConfigRules& rules, ModelConfig& config) {
  config.vocab = fields.integer("vocab_size", 1, kMaxVocab);
  config.hidden = fields.integer("hidden_size", 1, kMaxWidth);
  config.layers = fields.integer("num_hidden_layers", 1, kMaxLayers);
  config.heads = fields.integer("num_attention_heads", 1, kMaxHeads);
  config.kv_heads = read_kv_heads(fields, rules, config.heads);
  config.ffn = fields.integer("intermediate_size", 1, kMaxWidth);
  config.context = fields.integer("max_position_embeddings", 1, kMaxContext);
  config.head_dim = read_head_dim(fields, rules, config);
  config.norm_epsilon = fields.number_or("rms_norm_eps", 1e-6f, kMinNormEpsilon, kMaxNormEpsilon);
  config.tied_head = fields.boolean_or("tie_word_embeddings", rules.default_tied_head);
  TESSERA_RETURN_IF_ERROR(fields.status());
  if (config.heads % config.kv_heads != 0) {
    fields.refuse("num_key_value_heads",
                  absl::StrCat("is ", config.kv_heads, ", which does not divide ",
                               "num_attention_heads ", config.heads));
  }
  TESSERA_RETURN_IF_ERROR(fields.status());
  if (config.head_dim > kMaxHeadDim || config.head_dim % kHeadDimMultiple != 0) {
    return unimplemented(
        fields, absl::StrCat("head_dim ", config.head_dim),
        absl::StrCat("supported are multiples of ", kHeadDimMultiple, " up to ", kMaxHeadDim));
  }
  return absl::OkStatus();
}

// Returns: true for each layer that layer_types makes a windowed one; empty without the field.
absl::StatusOr<std::vector<bool>> read_layer_types(JsonFields& fields, const ModelConfig& config) {
  std::vector<bool> windowed;
  for (const std::string& type : fields.texts_or_none("layer_types")) {
    if (type != "full_attention" && type != "sliding_attention") {
      return unimplemented(fields, absl::StrCat("layer_types with ", in_quotes(type)),
                           "supported are \"full_attention\" and \"sliding_attention\"");
    }
    windowed.push_back(type == "sliding_attention");
  }
  TESSERA_RETURN_IF_ERROR(fields.status());
  if (!windowed.empty() && std::cmp_not_equal(windowed.size(), config.layers)) {
    fields.refuse("layer_types", absl::StrCat("has ", windowed.size(), " layers, expected ",
                                              config.layers, " (num_hidden_layers)"));
  }
  TESSERA_RETURN_IF_ERROR(fields.status());
  return windowed;
}

// Reads the window of an architecture whose layers have one or none.
absl::Status read_windows_of_layers(JsonFields& fields, const ConfigRules& rules,
                                    std::vector<bool> windowed, ModelConfig& config) {
  const int32_t fallback = fields.mentions("sliding_window") ? 0 : rules.default_sliding_window;
  config.sliding_window = fields.integer_or("sliding_window", fallback, 1, kMaxContext);
  if (windowed.empty() && rules.sliding_window == SlidingWindowRule::switched_by_layer) {
    const int32_t full = fields.integer_or("max_window_layers", 28, 0, kMaxLayers);
    for (int32_t layer = 0; layer < config.layers; ++layer) {
      windowed.push_back(layer >= full);
    }
  }
  const bool any = windowed.empty() || std::ranges::count(windowed, true) > 0;
  if (!any) config.sliding_window = 0;
  if (config.sliding_window > 0 && std::ranges::count(windowed, false) > 0) {
    for (const bool one : windowed) {
      config.layer_kinds.push_back({.windowed = one});
    }
  }
  return fields.status();
}

absl::Status read_sliding_window(JsonFields& fields, const ConfigRules& rules,
                                 ModelConfig& config) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<bool> windowed, read_layer_types(fields, config));
  const bool switched = fields.boolean_or("use_sliding_window", false);
  TESSERA_RETURN_IF_ERROR(fields.status());
  switch (rules.sliding_window) {
    case SlidingWindowRule::switched:
      if (switched) {
        return unimplemented(fields, "use_sliding_window true",
                             "set it to false for full attention");
      }
      break;
    case SlidingWindowRule::switched_by_layer:
      return switched ? read_windows_of_layers(fields, rules, std::move(windowed), config)
                      : absl::OkStatus();
    case SlidingWindowRule::by_layer:
      return read_windows_of_layers(fields, rules, std::move(windowed), config);
    case SlidingWindowRule::field: {
      const int32_t fallback = fields.mentions("sliding_window") ? 0 : rules.default_sliding_window;
      config.sliding_window = fields.integer_or("sliding_window", fallback, 1, kMaxContext);
      break;
    }
    case SlidingWindowRule::never:
      break;
  }
  // transformers ignores layer_types here, so a list that says something else is a mistake.
  const bool window = config.sliding_window > 0;
  if (fields.status().ok() && std::ranges::count(windowed, !window) > 0) {
    return unimplemented(
        fields,
        absl::StrCat("layer_types with \"", window ? "full_attention" : "sliding_attention", "\""),
        absl::StrCat("all layers of ", config.architecture, " are alike"));
  }
  return fields.status();
}

// The ids of generation_config.json override those of config.json, because generation uses them.
absl::Status read_token_ids(JsonFields& fields, ModelConfig& config) {
  const int64_t last = config.vocab - 1;
  config.bos_id = fields.integer_or("bos_token_id", config.bos_id, 0, last);
  if (fields.has("eos_token_id")) {
    config.eos_ids = fields.integers_or_none("eos_token_id", 0, last);
  }
  return fields.status();
}

// Returns: the object with the fields of the language model, not owned.
absl::StatusOr<const json*> language_object(JsonFields& fields, const Architecture& architecture,
                                            const json& whole) {
  const char* key = architecture.config.text_config;
  if (key == nullptr) return &whole;
  const json* object = fields.object_or_null(key);
  if (object == nullptr) fields.refuse(key, "is missing");
  TESSERA_RETURN_IF_ERROR(fields.status());
  JsonFields own(*object, absl::StrCat(fields.path(), ": ", key));
  const std::span<const char* const> types = architecture.config.text_types;
  const std::string type = own.text_or("model_type", types.front());
  TESSERA_RETURN_IF_ERROR(own.status());
  if (std::ranges::find(types, type) == types.end()) {
    return unimplemented(own, absl::StrCat("model_type ", in_quotes(type)),
                         absl::StrCat(type == "mistral4" ? "multi-head latent attention (MLA) is "
                                                           "not supported; "
                                                         : "",
                                      "supported are \"", absl::StrJoin(types, "\" and \""), "\""));
  }
  return object;
}

absl::Status read_language_model(JsonFields& fields, const Architecture& architecture,
                                 ModelConfig& config) {
  const ConfigRules& rules = architecture.config;
  TESSERA_RETURN_IF_ERROR(read_biases(fields, rules, config));
  TESSERA_RETURN_IF_ERROR(read_activation(fields, rules, config));
  TESSERA_RETURN_IF_ERROR(read_shape(fields, rules, config));
  TESSERA_RETURN_IF_ERROR(read_sliding_window(fields, rules, config));
  TESSERA_RETURN_IF_ERROR(read_rope(fields, rules, config));
  if (rules.read_own_fields != nullptr) {
    rules.read_own_fields(fields, config);
    config.own_experts = config.experts;
  }
  TESSERA_RETURN_IF_ERROR(fields.status());
  if (architecture.derive != nullptr) architecture.derive(config);
  return read_token_ids(fields, config);
}

absl::StatusOr<json> parse_object(std::string_view text, const std::string& file) {
  TESSERA_ASSIGN_OR_RETURN(json parsed, parse_strict_json(text, file));
  if (!parsed.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": is not a JSON object"));
  }
  return parsed;
}

}  // namespace

absl::StatusOr<ModelConfig> parse_model_config(std::string_view config_json,
                                               std::string_view generation_config_json) {
  TESSERA_ASSIGN_OR_RETURN(const json object, parse_object(config_json, "config.json"));
  JsonFields fields(object, "config.json");
  ModelConfig config;
  TESSERA_ASSIGN_OR_RETURN(const Architecture* architecture, read_architecture(fields));
  config.architecture = architecture->name;
  TESSERA_RETURN_IF_ERROR(read_quantisation(fields).status());
  TESSERA_ASSIGN_OR_RETURN(const json* language, language_object(fields, *architecture, object));
  const bool nested = language != &object;
  JsonFields own(*language, nested ? absl::StrCat("config.json: ", architecture->config.text_config)
                                   : "config.json");
  TESSERA_RETURN_IF_ERROR(read_language_model(own, *architecture, config));
  if (nested) {
    TESSERA_RETURN_IF_ERROR(read_token_ids(fields, config));
  }
  if (!generation_config_json.empty()) {
    const std::string file = "generation_config.json";
    TESSERA_ASSIGN_OR_RETURN(const json generation, parse_object(generation_config_json, file));
    JsonFields generation_fields(generation, file);
    TESSERA_RETURN_IF_ERROR(read_token_ids(generation_fields, config));
  }
  return config;
}

namespace {

absl::StatusOr<ModelConfig> read_without_profile(const std::filesystem::path& model) {
  TESSERA_ASSIGN_OR_RETURN(const std::optional<std::filesystem::path> file, find_gguf(model));
  if (file) {
    TESSERA_ASSIGN_OR_RETURN(const GgufModel opened, GgufModel::open(*file));
    return read_gguf_config(opened);
  }
  const std::filesystem::path& directory = model;
  if (std::error_code error; !std::filesystem::exists(directory / "config.json", error) &&
                             std::filesystem::exists(directory / kMistralParams, error)) {
    TESSERA_ASSIGN_OR_RETURN(const std::string params, read_small_file(directory / kMistralParams));
    absl::StatusOr<ModelConfig> parsed = parse_mistral_params(params);
    if (parsed.ok()) return parsed;
    return absl::Status(parsed.status().code(),
                        absl::StrCat(directory.string(), "/", parsed.status().message()));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string config, read_small_file(directory / "config.json"));
  absl::StatusOr<std::string> generation = read_small_file(directory / "generation_config.json");
  if (absl::IsNotFound(generation.status())) {
    generation = std::string();
  }
  TESSERA_RETURN_IF_ERROR(generation.status());
  absl::StatusOr<ModelConfig> parsed = parse_model_config(config, *generation);
  if (!parsed.ok()) {
    return absl::Status(parsed.status().code(),
                        absl::StrCat(directory.string(), "/", parsed.status().message()));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::optional<int32_t> end,
                           tokenizer_end_token(directory, parsed->vocab));
  if (end && std::ranges::find(parsed->eos_ids, *end) == parsed->eos_ids.end()) {
    parsed->eos_ids.push_back(*end);
  }
  return parsed;
}

}  // namespace

absl::StatusOr<ModelConfig> read_model_config(const std::filesystem::path& model) {
  TESSERA_ASSIGN_OR_RETURN(ModelConfig config, read_without_profile(model));
  TESSERA_ASSIGN_OR_RETURN(
      config.head_profiles,
      read_head_profiles(head_profile_path(model), config.layers, config.kv_heads));
  return config;
}

}  // namespace tessera
