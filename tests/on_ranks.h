#pragma once

#include "kernels/communicator.h"
#include "models/config.h"

// Tests of models split over ranks. MPI's launcher starts the program as 1, 2 and 4 processes, each
// of which runs every test; main() is in on_ranks.cpp.
namespace tessera {

// Of this process, for all tests.
Communicator& ranks();

// So that each of 4 ranks has whole heads.
inline ModelConfig with_four_kv_heads(ModelConfig config) {
  config.heads = 8;
  config.kv_heads = 4;
  config.head_dim = 32;
  return config;
}

inline constexpr uint64_t kRanksSeed = 20261122;  // of their checkpoints

}  // namespace tessera
