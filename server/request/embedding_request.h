#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/request/generate_request.h"

namespace tessera {

// Fields that hold the inputs, as errors name them.
struct InputFields {
  std::string_view last = "input";  // of all inputs but the first ones
  std::string_view first;           // of the first `firsts` inputs
  std::size_t firsts = 0;
};

// A request for the embeddings of several inputs, the same for both front ends.
struct EmbeddingRequest {
  std::string model;           // empty: the served model
  std::vector<Prompt> inputs;  // texts and token ids
  GenerateRequest each;        // all fields but the prompt. Without a pooling: the server's own
  bool normalize = true;       // to the length 1
  std::optional<int32_t> dimensions;  // as many of the first values; none: all
  bool base64 = false;  // values are printed as base64 of f32, little-endian; else as numbers
  std::optional<std::size_t> answer_bytes;  // of an answer without embeddings; none: it has them
  InputFields fields;
};

}  // namespace tessera
