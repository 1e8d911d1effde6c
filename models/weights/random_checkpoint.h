#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "files/safetensors.h"
#include "models/config/model_config.h"

namespace tessera {

// Writes a Hugging Face directory with the shape of `config` and random weights, for tests,
// simulations and benchmarks. Weights have the magnitude of a trained model: matrices have variance
// 1 / inputs, norms are near 1, biases near 0. The same seed gives the same elements on every
// machine and for any number of shards, up to the rounding of `type`. Creates the directory; holds
// one shard in memory.
// Requires: is_readable(type), shards >= 1.
// Errors: Unavailable if a file or the directory cannot be written.
absl::Status write_random_checkpoint(const std::filesystem::path& directory,
                                     const ModelConfig& config, uint64_t seed,
                                     TensorType type = TensorType::f32, int32_t shards = 1);

}  // namespace tessera
