#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "models/config/model_config.h"

namespace tessera {

// The part of a model that a rank holds under tensor parallelism (Megatron-LM, section 3). Query,
// key, value, gate and up are split by rows. So a rank has whole heads, each KV head with all its
// query heads, and a share of the inner layer. Attention's output and down are split by columns, so
// each rank computes a partial sum of the residual stream. It is all-reduced once after attention
// and once after the inner layer. Embedding, norms and head are replicated on every rank,
// and so are the q/k norms, which have the width of one head. A mixture of experts is split by
// whole experts; its router is replicated. The expert that serves every token is split by its inner
// width.
struct Shard {
  int32_t rank = 0;
  int32_t ranks = 1;
};

// Errors: InvalidArgument if the number of KV heads, or that of experts or else the inner width, is
// not a multiple of `ranks`; likewise a shared expert's width.
absl::Status check_divides(const ModelConfig& config, int32_t ranks);

// Returns: the config of one rank, with its share of heads, kv_heads, and experts (with shared_ffn)
// or ffn.
// Requires: check_divides() succeeds.
ModelConfig shard_config(const ModelConfig& config, int32_t ranks);
// Inverse of shard_config().
ModelConfig whole_config(const ModelConfig& shard, int32_t ranks);

}  // namespace tessera
