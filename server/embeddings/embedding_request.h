#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/service.h"

namespace tessera {

// A request for the embeddings of several inputs, the same for both front ends.
struct EmbeddingRequest {
  std::string model;           // empty: the served model
  std::vector<Prompt> inputs;  // texts and token ids
  GenerateRequest each;        // all fields but the prompt. Without a pooling: the server's own
  bool normalize = true;       // to the length 1
  std::optional<int32_t> dimensions;  // as many of the first values; none: all
  bool base64 = false;  // values are printed as base64 of f32, little-endian; else as numbers
};

}  // namespace tessera
