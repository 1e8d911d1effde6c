#pragma once

#include <string>

#include "models/config/model_config.h"

namespace tessera {

// Returns: a config.json that parse_model_config and transformers read as this config.
// Requires: rope_scaling is not `factors`, which config.json cannot spell.
std::string model_config_json(const ModelConfig& config);

}  // namespace tessera
