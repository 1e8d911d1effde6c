#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "models/config.h"

namespace tessera {

// Which part of a model a rank holds under tensor parallelism (Megatron-LM, section 3). Query, key,
// value, gate and up are split by rows, so that a rank has whole heads, each KV head with all its
// query heads, and a share of the inner layer; attention's output and down are split by columns,
// so that each rank has an addend of the residual stream, and one sum over the ranks after
// attention and one after the inner layer make it whole again. Embedding, norms and head stand on
// every rank.
struct Shard {
  int32_t rank = 0;
  int32_t ranks = 1;
};

// Errors: InvalidArgument where KV heads or the inner width do not divide by the ranks.
absl::Status check_divides(const ModelConfig& config, int32_t ranks);

// The model that one rank computes: of heads, kv_heads and ffn, its own. Requires: check_divides().
ModelConfig shard_config(const ModelConfig& config, int32_t ranks);
// And the other way.
ModelConfig whole_config(const ModelConfig& shard, int32_t ranks);

}  // namespace tessera
