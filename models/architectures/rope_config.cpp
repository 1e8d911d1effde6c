#include "models/architectures/rope_config.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/config/config_limits.h"

namespace tessera {
namespace {

using namespace config_limits;

constexpr char kOriginalPositions[] = "original_max_position_embeddings";

absl::Status unimplemented(const JsonFields& fields, const std::string& what) {
  return absl::UnimplementedError(absl::StrCat(fields.path(), ": ", what));
}

absl::StatusOr<RopeScaling::Kind> rope_kind(JsonFields& fields) {
  using Kind = RopeScaling::Kind;
  const std::string type = fields.text_or("rope_type", fields.text_or("type", "default"));
  TESSERA_RETURN_IF_ERROR(fields.status());
  // Phi-3 was published with the names "su" and "yarn" for longrope.
  if (type == "longrope" || type == "su" || fields.has("short_factor")) return Kind::longrope;
  if (type == "default") return Kind::none;
  if (type == "linear") return Kind::linear;
  if (type == "dynamic") return Kind::dynamic;
  if (type == "llama3") return Kind::llama3;
  if (type == "yarn") return Kind::yarn;
  return unimplemented(fields, absl::StrCat("the RoPE scaling ", in_quotes(type),
                                            " is not supported; supported are \"default\", "
                                            "\"linear\", \"dynamic\", \"llama3\", \"yarn\" and "
                                            "\"longrope\""));
}

void read_llama3(JsonFields& fields, RopeScaling& scaling) {
  scaling.factor = fields.number("factor", 1, kMaxRopeFactor);
  scaling.low_freq_factor = fields.number("low_freq_factor", 1e-3, 1e6);
  scaling.high_freq_factor = fields.number("high_freq_factor", 1e-3, 1e6);
  scaling.original_context = fields.integer(kOriginalPositions, 1, kMaxContext);
  if (fields.status().ok() && scaling.high_freq_factor <= scaling.low_freq_factor) {
    fields.refuse("high_freq_factor",
                  absl::StrCat("is ", scaling.high_freq_factor,
                               ", expected more than low_freq_factor ", scaling.low_freq_factor));
  }
}

void read_yarn_rope(JsonFields& fields, RopeScaling& scaling) {
  scaling.factor = fields.number("factor", 1, kMaxRopeFactor);
  scaling.beta_fast = fields.number_or("beta_fast", 32, 1e-3, 1e6);
  scaling.beta_slow = fields.number_or("beta_slow", 1, 1e-3, 1e6);
  scaling.whole_pairs = fields.boolean_or("truncate", true);
  const float numerator = fields.number_or("mscale", 0, 0, kMaxRopeFactor);
  const float denominator = fields.number_or("mscale_all_dim", 0, 0, kMaxRopeFactor);
  const float growth =
      numerator > 0 && denominator > 0
          ? yarn_growth(scaling.factor, numerator) / yarn_growth(scaling.factor, denominator)
          : yarn_growth(scaling.factor, 1);
  scaling.attention_factor = fields.number_or("attention_factor", growth, 0, kMaxRopeFactor);
}

// Reads one factor for each pair that is rotated.
std::vector<float> read_factors(JsonFields& fields, const char* key, int32_t pairs) {
  std::vector<float> factors = fields.numbers(key, 1e-6, kMaxRopeFactor);
  if (fields.status().ok() && std::cmp_not_equal(factors.size(), pairs)) {
    fields.refuse(key, absl::StrCat("has ", factors.size(), " numbers, expected ", pairs,
                                    ", half of the rotated elements of a head"));
  }
  return factors;
}

void read_longrope(JsonFields& fields, const ModelConfig& config, RopeScaling& scaling) {
  const int32_t pairs = config.rotary_width() / 2;
  scaling.short_factors = read_factors(fields, "short_factor", pairs);
  scaling.long_factors = read_factors(fields, "long_factor", pairs);
  const auto original = static_cast<float>(scaling.original_context);
  scaling.factor = fields.number_or("factor", static_cast<float>(config.context) / original, 1e-6,
                                    kMaxRopeFactor);
  const float growth =
      scaling.factor <= 1 ? 1 : std::sqrt(1 + std::log(scaling.factor) / std::log(original));
  scaling.attention_factor = fields.number_or("attention_factor", growth, 0, kMaxRopeFactor);
}

// Reads the share of a head that is rotated.
absl::Status read_partial(JsonFields& fields, const ConfigRules& rules, ModelConfig& config) {
  constexpr char kKey[] = "partial_rotary_factor";
  const float factor = fields.number_or(kKey, 1, 0, 1);
  TESSERA_RETURN_IF_ERROR(fields.status());
  if (factor == 1) return absl::OkStatus();
  if (!rules.partial_rotary) {
    return unimplemented(fields, absl::StrCat(kKey, " ", factor, ": ", config.architecture,
                                              " has no such field in transformers"));
  }
  const auto rotated = static_cast<int32_t>(static_cast<float>(config.head_dim) * factor);
  if (rotated < 2 || rotated % 2 != 0) {
    fields.refuse(kKey, absl::StrCat("is ", factor, ", so ", rotated, " of ", config.head_dim,
                                     " elements are rotated; expected an even number"));
  }
  config.rotary_dim = rotated;
  return fields.status();
}

absl::Status read_object(JsonFields& fields, const ConfigRules& rules, int32_t original,
                         ModelConfig& config);

// Reads the RoPE of layers without a window, and the base of the others, which nothing scales.
absl::Status read_both(JsonFields& fields, const ConfigRules& rules, int32_t original,
                       ModelConfig& config) {
  const nlohmann::json* full = fields.object_or_null("full_attention");
  const nlohmann::json* windowed = fields.object_or_null("sliding_attention");
  TESSERA_RETURN_IF_ERROR(fields.status());
  if (windowed != nullptr) {
    JsonFields local(*windowed, absl::StrCat(fields.path(), ": sliding_attention"));
    TESSERA_ASSIGN_OR_RETURN(const RopeScaling::Kind kind, rope_kind(local));
    if (kind != RopeScaling::Kind::none) {
      return unimplemented(local, "scaling of the windowed layers' RoPE is not supported");
    }
    config.local_rope_theta =
        local.number_or("rope_theta", config.local_rope_theta, 1, kMaxRopeTheta);
    TESSERA_RETURN_IF_ERROR(local.status());
  }
  if (full == nullptr) return absl::OkStatus();
  JsonFields own(*full, absl::StrCat(fields.path(), ": full_attention"));
  return read_object(own, rules, original, config);
}

// `original` is that of config.json itself, which has priority, or 0.
absl::Status read_object(JsonFields& fields, const ConfigRules& rules, int32_t original,
                         ModelConfig& config) {
  RopeScaling& scaling = config.rope_scaling;
  if (fields.has("full_attention") || fields.has("sliding_attention")) {
    return rules.local_rope
               ? read_both(fields, rules, original, config)
               : unimplemented(fields, "a RoPE for each of the layer_types is not supported");
  }
  TESSERA_ASSIGN_OR_RETURN(scaling.kind, rope_kind(fields));
  config.rope_theta = fields.number_or("rope_theta", config.rope_theta, 1, kMaxRopeTheta);
  TESSERA_RETURN_IF_ERROR(read_partial(fields, rules, config));
  if (scaling.kind != RopeScaling::Kind::none) {
    scaling.original_context =
        original > 0 ? original
                     : fields.integer_or(kOriginalPositions, config.context, 1, kMaxContext);
  }
  switch (scaling.kind) {
    case RopeScaling::Kind::linear:
    case RopeScaling::Kind::dynamic:
      scaling.factor = fields.number("factor", 1, kMaxRopeFactor);
      break;
    case RopeScaling::Kind::llama3:
      read_llama3(fields, scaling);
      break;
    case RopeScaling::Kind::yarn:
      read_yarn_rope(fields, scaling);
      break;
    case RopeScaling::Kind::longrope:
      read_longrope(fields, config, scaling);
      break;
    case RopeScaling::Kind::none:
    case RopeScaling::Kind::factors:
      break;
  }
  if (fields.has("llama_4_scaling_beta")) {
    scaling.query_growth = fields.number("llama_4_scaling_beta", 0, 100);
    scaling.original_context = fields.integer(kOriginalPositions, 1, kMaxContext);
  }
  return fields.status();
}

}  // namespace

absl::Status read_rope(JsonFields& fields, const ConfigRules& rules, ModelConfig& config) {
  config.rope_theta = fields.number_or("rope_theta", rules.default_rope_theta, 1, kMaxRopeTheta);
  if (rules.local_rope) {
    config.local_rope_theta = fields.number_or("rope_local_base_freq", 10000, 1, kMaxRopeTheta);
  }
  TESSERA_RETURN_IF_ERROR(read_partial(fields, rules, config));
  const char* key = fields.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  const int32_t original = fields.integer_or(kOriginalPositions, 0, 1, kMaxContext);
  const nlohmann::json* object = fields.object_or_null(key);
  TESSERA_RETURN_IF_ERROR(fields.status());
  if (object == nullptr) {
    return absl::OkStatus();
  }
  JsonFields rope(*object, absl::StrCat(fields.path(), ": ", key));
  return read_object(rope, rules, original, config);
}

float yarn_growth(float factor, float scale) {
  return factor <= 1 ? 1 : 0.1f * scale * std::log(factor) + 1;
}

int32_t longest_context(const ModelConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  const int32_t before = scaling.kind == RopeScaling::Kind::yarn ? scaling.original_context
                         : scaling.kind == RopeScaling::Kind::linear && config.local_rope_theta == 0
                             ? config.context
                             : 0;
  const auto stretched = static_cast<int64_t>(static_cast<double>(before) * scaling.factor);
  return std::max(config.context, static_cast<int32_t>(std::min(stretched, kMaxContext)));
}

}  // namespace tessera
