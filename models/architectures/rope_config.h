#pragma once

#include "absl/status/status.h"
#include "files/json_fields.h"
#include "models/architectures/architecture.h"
#include "models/config/model_config.h"

namespace tessera {

// Reads the RoPE of a config.json into rope_theta, rope_scaling and rotary_dim. Accepts two
// spellings: rope_theta beside rope_scaling, or both in rope_parameters (transformers 5).
// Requires: config.context and config.head_dim are read.
// Errors: InvalidArgument, Unimplemented for a kind of scaling that is not supported.
absl::Status read_rope(JsonFields& fields, const ConfigRules& rules, ModelConfig& config);

// Returns: YaRN's growth of cosines and sines by the factor of the context.
float yarn_growth(float factor, float scale);

// Returns: the longest sequence that a model was made for: max_position_embeddings, or as many
// tokens as its scaling stretches RoPE to. Checkpoints that are shipped for YaRN, and those with
// linear scaling other than Gemma 3, have the context before it in that field.
int32_t longest_context(const ModelConfig& config);

}  // namespace tessera
