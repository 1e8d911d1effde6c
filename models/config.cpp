#include "models/config.h"

#include "absl/strings/str_cat.h"
#include "models/architectures/architecture.h"
#include "models/config_limits.h"
#include "models/gguf/config.h"
#include "models/json_fields.h"
#include "models/mapped_file.h"
#include "models/quantised/method.h"
#include "models/status_macros.h"

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
  return unimplemented(fields, absl::StrCat("the architecture ", in_quotes(names[0])),
                       absl::StrCat("supported are ", known));
}

absl::Status refuse_what_we_lack(JsonFields& fields) {
  TESSERA_RETURN_IF_ERROR(read_quantisation(fields).status());
  for (const char* bias : {"attention_bias", "mlp_bias"}) {
    if (fields.boolean_or(bias, false)) {
      return unimplemented(fields, absl::StrCat(bias, " true"),
                           "only Qwen2's biases of q, k and v are");
    }
  }
  const std::string activation = fields.text_or("hidden_act", "silu");
  TESSERA_RETURN_IF_ERROR(fields.status());
  if (activation != "silu") {
    return unimplemented(fields, absl::StrCat("hidden_act ", in_quotes(activation)),
                         "supported is \"silu\"");
  }
  for (const std::string& type : fields.texts_or_none("layer_types")) {
    if (type != "full_attention") {
      return unimplemented(fields, absl::StrCat("layer_types with ", in_quotes(type)),
                           "supported is \"full_attention\"");
    }
  }
  return fields.status();
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
  config.tied_head = fields.boolean_or("tie_word_embeddings", false);
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

absl::Status read_sliding_window(JsonFields& fields, const ConfigRules& rules,
                                 ModelConfig& config) {
  const char* key = "sliding_window";
  if (rules.sliding_window == SlidingWindowRule::switched &&
      fields.boolean_or("use_sliding_window", false)) {
    return unimplemented(fields, "use_sliding_window true", "set it to false for full attention");
  }
  if (rules.sliding_window == SlidingWindowRule::field) {
    const int32_t fallback = fields.mentions(key) ? 0 : rules.default_sliding_window;
    config.sliding_window = fields.integer_or(key, fallback, 1, kMaxContext);
  }
  return fields.status();
}

absl::StatusOr<RopeScaling::Kind> rope_kind(JsonFields& fields) {
  const std::string type = fields.text_or("rope_type", fields.text_or("type", "default"));
  TESSERA_RETURN_IF_ERROR(fields.status());
  if (type == "default") {
    return RopeScaling::Kind::none;
  }
  if (type == "linear") {
    return RopeScaling::Kind::linear;
  }
  if (type == "llama3") {
    return RopeScaling::Kind::llama3;
  }
  return unimplemented(fields, absl::StrCat("the RoPE scaling ", in_quotes(type)),
                       "supported are \"default\", \"linear\" and \"llama3\"");
}

absl::Status read_rope_object(JsonFields& fields, ModelConfig& config) {
  RopeScaling& scaling = config.rope_scaling;
  TESSERA_ASSIGN_OR_RETURN(scaling.kind, rope_kind(fields));
  config.rope_theta = fields.number_or("rope_theta", config.rope_theta, 1, kMaxRopeTheta);
  if (fields.number_or("partial_rotary_factor", 1, 0, 1) != 1) {
    return unimplemented(fields, "partial_rotary_factor below 1", "supported is 1");
  }
  if (scaling.kind != RopeScaling::Kind::none) {
    scaling.factor = fields.number("factor", 1, kMaxRopeFactor);
  }
  if (scaling.kind == RopeScaling::Kind::llama3) {
    scaling.low_freq_factor = fields.number("low_freq_factor", 1e-3, 1e6);
    scaling.high_freq_factor = fields.number("high_freq_factor", 1e-3, 1e6);
    scaling.original_context = fields.integer("original_max_position_embeddings", 1, kMaxContext);
    if (fields.status().ok() && scaling.high_freq_factor <= scaling.low_freq_factor) {
      fields.refuse("high_freq_factor",
                    absl::StrCat("is ", scaling.high_freq_factor,
                                 ", expected more than low_freq_factor ", scaling.low_freq_factor));
    }
  }
  return fields.status();
}

// Accepts two spellings: rope_theta beside rope_scaling, or both in rope_parameters
// (transformers 5).
absl::Status read_rope(JsonFields& fields, ModelConfig& config) {
  config.rope_theta = fields.number_or("rope_theta", 10000, 1, kMaxRopeTheta);
  if (fields.number_or("partial_rotary_factor", 1, 0, 1) != 1) {
    return unimplemented(fields, "partial_rotary_factor below 1", "supported is 1");
  }
  const char* key = fields.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  const json* object = fields.object_or_null(key);
  TESSERA_RETURN_IF_ERROR(fields.status());
  if (object == nullptr) {
    return absl::OkStatus();
  }
  JsonFields rope(*object, absl::StrCat(fields.path(), ": ", key));
  return read_rope_object(rope, config);
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
  TESSERA_RETURN_IF_ERROR(refuse_what_we_lack(fields));
  TESSERA_RETURN_IF_ERROR(read_shape(fields, architecture->config, config));
  TESSERA_RETURN_IF_ERROR(read_sliding_window(fields, architecture->config, config));
  TESSERA_RETURN_IF_ERROR(read_rope(fields, config));
  TESSERA_RETURN_IF_ERROR(read_token_ids(fields, config));
  if (!generation_config_json.empty()) {
    const std::string file = "generation_config.json";
    TESSERA_ASSIGN_OR_RETURN(const json generation, parse_object(generation_config_json, file));
    JsonFields generation_fields(generation, file);
    TESSERA_RETURN_IF_ERROR(read_token_ids(generation_fields, config));
  }
  return config;
}

absl::StatusOr<ModelConfig> read_model_config(const std::filesystem::path& model) {
  TESSERA_ASSIGN_OR_RETURN(const std::optional<std::filesystem::path> file, find_gguf(model));
  if (file) {
    TESSERA_ASSIGN_OR_RETURN(const GgufModel opened, GgufModel::open(*file));
    return read_gguf_config(opened);
  }
  const std::filesystem::path& directory = model;
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
  return parsed;
}

}  // namespace tessera
