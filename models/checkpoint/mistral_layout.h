#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "models/config/model_config.h"

// Mistral's own form of a checkpoint: params.json and consolidated.safetensors, with names and an
// order of q's and k's rows of their own (StoredTensor::interleaved_rows).
namespace tessera {

inline constexpr char kMistralParams[] = "params.json";
inline constexpr char kMistralWeights[] = "consolidated.safetensors";

// Returns: the config of a params.json, as that of Ministral3ForCausalLM, which has all that these
// files describe. The tokens <s> and </s> of Mistral's tokenizers begin and end texts.
// Errors: InvalidArgument, Unimplemented; each names the field.
absl::StatusOr<ModelConfig> parse_mistral_params(std::string_view params_json);

// Returns: the name in a Hugging Face directory; nullopt for tensors of an image encoder. A name
// that is not known stays as it is.
std::optional<std::string> name_of_mistral_tensor(const std::string& name);

// Returns: true for q and k, whose rows are interleaved.
bool is_interleaved_mistral_tensor(const std::string& name);

}  // namespace tessera
