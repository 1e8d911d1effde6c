#include "models/lora/peft_config.h"

#include <cmath>
#include <string>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "files/json_fields.h"
#include "files/mapped_file.h"
#include "models/lora/product.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

using nlohmann::json;

// A field that must be missing, null, false or empty.
struct RefusedField {
  const char* key;
  const char* why;
};

constexpr RefusedField kRefused[] = {
    {"modules_to_save", "whole modules beside the adapter are not supported"},
    {"trainable_token_indices", "changed embeddings are not supported"},
    {"target_parameters", "adapters of parameters are not supported, only those of linear modules"},
    {"use_dora", "DoRA is not supported"},
    {"use_qalora", "QALoRA is not supported"},
    {"use_bdlora", "block-diagonal adapters are not supported"},
    {"lora_bias", "biases of B are not supported"},
    {"fan_in_fan_out", "transposed weights are not supported"},
    {"rank_pattern", "ranks by module are not supported"},
    {"alpha_pattern", "alphas by module are not supported"},
    {"layer_replication", "replicated layers are not supported"},
    {"alora_invocation_tokens", "activated adapters (aLoRA) are not supported"},
    {"arrow_config", "routed adapters are not supported"},
    {"kasa_config", "KaSA is not supported"},
    {"monteclora_config", "MonteCLoRA is not supported"},
};

// Beginnings of init_lora_weights by which PEFT subtracts the first B A from the model's weights.
constexpr std::string_view kChangesWeights[] = {"pissa", "olora", "corda", "loftq", "lora_ga"};

bool is_off(const json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  return value.is_null() || ((value.is_structured() || value.is_string()) && value.empty());
}

absl::Status unsupported_field(const std::string& file, const char* key, const std::string& value,
                               const std::string& why) {
  return absl::UnimplementedError(absl::StrCat(file, ": ", key, " is ", value, ": ", why));
}

absl::Status refuse_what_we_lack(const json& object, const std::string& file) {
  for (const RefusedField& field : kRefused) {
    const auto found = object.find(field.key);
    if (found != object.end() && !is_off(*found)) {
      return unsupported_field(file, field.key, found->dump(-1, ' ', true).substr(0, 200),
                               field.why);
    }
  }
  const auto start = object.find("init_lora_weights");
  if (start == object.end() || !start->is_string()) return absl::OkStatus();
  const auto& name = start->get_ref<const std::string&>();
  for (const std::string_view beginning : kChangesWeights) {
    if (absl::StartsWith(name, absl::string_view(beginning.data(), beginning.size()))) {
      return unsupported_field(file, "init_lora_weights", in_quotes(name),
                               "it changes the model's own weights; save the adapter with "
                               "path_initial_model_for_weight_conversion");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PeftConfig> read_peft_config(const std::filesystem::path& file) {
  TESSERA_ASSIGN_OR_RETURN(const std::string text, read_small_file(file));
  TESSERA_ASSIGN_OR_RETURN(const json parsed, parse_strict_json(text, file.string()));
  if (!parsed.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(file.string(), ": is no JSON object"));
  }
  JsonFields fields(parsed, file.string());
  const std::string type = fields.text("peft_type");
  TESSERA_RETURN_IF_ERROR(fields.status());
  if (type != "LORA") {
    return unsupported_field(file.string(), "peft_type", in_quotes(type),
                             "only \"LORA\" is supported");
  }
  TESSERA_RETURN_IF_ERROR(refuse_what_we_lack(parsed, file.string()));
  const std::string bias = fields.text_or("bias", "none");
  PeftConfig config;
  config.rank = fields.integer("r", 1, kMaxLoraRank);
  const float alpha = fields.number("lora_alpha", -1e6, 1e6);
  const bool stabilised = fields.boolean_or("use_rslora", false);
  TESSERA_RETURN_IF_ERROR(fields.status());
  if (bias != "none") {
    return unsupported_field(file.string(), "bias", in_quotes(bias), "only \"none\" is supported");
  }
  const auto rank = static_cast<float>(config.rank);
  config.scale = alpha / (stabilised ? std::sqrt(rank) : rank);
  return config;
}

}  // namespace tessera
