#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/text/byte_level.h"
#include "models/text/metaspace.h"
#include "nlohmann/json.hpp"

namespace tessera {

// What the parts of a tokenizer.json around its model do.
struct JsonPipeline {
  bool byte_level = false;
  ByteLevelSettings bytes;            // if byte_level
  MetaspaceSettings metaspace;        // otherwise
  bool strips_leading_space = false;  // the decoder does
  std::vector<int32_t> before;        // token ids the post-processor puts around a text
  std::vector<int32_t> after;

  // Reads "normalizer", "pre_tokenizer", "post_processor" and "decoder".
  static absl::StatusOr<JsonPipeline> parse(const nlohmann::json& file);
};

}  // namespace tessera
