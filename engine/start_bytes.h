#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "models/config/model_config.h"

namespace tessera {

// A model that a start loads, as far as it takes memory. Not owned.
struct StartModel {
  const ModelConfig& own;    // of one rank
  int64_t weight_bytes = 0;  // on each rank
  const Backend& backend;
  Stream stream;
  const ModelConfig* draft = nullptr;  // a model that drafts tokens; null: none
  int64_t draft_weight_bytes = 0;
};

// Bytes of a start on each rank, besides those of requests.
struct StartBytes {
  int64_t weights = 0;
  int64_t workspace = 0;
  int64_t sampling = 0;
  int64_t draft = 0;  // of a model that drafts tokens: weights, workspace and KV cache
  KvArenaShape kv;
  int64_t swap = 0;    // host memory for swapped-out sequences
  int64_t stores = 0;  // likewise for stored prefix blocks and those on their way

  int64_t model() const { return weights + workspace + sampling + draft; }
};

// Returns: the bytes that a start with these options takes. options.kv_bytes 0: room for a whole
// context of each sequence.
// Errors: those of the options' KV cache.
absl::StatusOr<StartBytes> start_bytes(const EngineOptions& options, const StartModel& model);

}  // namespace tessera
