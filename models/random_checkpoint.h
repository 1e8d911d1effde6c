#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "models/config.h"
#include "models/safetensors.h"

namespace tessera {

// The config.json that parse_model_config reads back as `config`.
std::string model_config_json(const ModelConfig& config);

// Writes a Hugging Face directory of `config`'s shape whose weights are random but of a trained
// model's size: every matrix has variance 1 / inputs, norms are near 1, biases near 0. The same
// seed gives the same elements on every machine, up to `type`'s rounding and however many shards.
// Creates the directory; holds one shard in memory. For tests, simulations and benchmarks.
// Requires: is_readable(type), shards >= 1.
absl::Status write_random_checkpoint(const std::filesystem::path& directory,
                                     const ModelConfig& config, uint64_t seed,
                                     TensorType type = TensorType::f32, int32_t shards = 1);

}  // namespace tessera
