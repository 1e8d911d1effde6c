#pragma once

#include "kernels/communicator.h"
#include "models/config/model_config.h"

// Tests of models split over ranks. The MPI launcher starts the program as 1, 2 and 4 processes.
// Each process runs every test; main() is in on_ranks.cpp.
namespace tessera {

// Returns: the communicator of this process, shared by all tests.
Communicator& ranks();

// Gives each of up to 4 ranks whole heads.
inline ModelConfig with_four_kv_heads(ModelConfig config) {
  config.heads = 8;
  config.kv_heads = 4;
  config.head_dim = 32;
  if (RopeScaling& scaling = config.rope_scaling; scaling.kind == RopeScaling::Kind::longrope) {
    config.rotary_dim *= 2;
    const auto pairs = static_cast<size_t>(config.rotary_width() / 2);
    scaling.short_factors.resize(pairs, 2);
    scaling.long_factors.resize(pairs, 21);
  }
  return config;
}

inline constexpr uint64_t kRanksSeed = 20261122;  // seed of the checkpoints

}  // namespace tessera
