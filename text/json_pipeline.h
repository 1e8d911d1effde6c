#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "text/byte_level.h"
#include "text/metaspace.h"

namespace tessera {

// Settings of a tokenizer.json outside of its model: normalizer, pre-tokenizer, post-processor and
// decoder.
struct JsonPipeline {
  bool byte_level = false;
  bool nfc = false;                   // text is normalised to NFC first
  ByteLevelSettings bytes;            // used if byte_level
  MetaspaceSettings metaspace;        // used if not byte_level
  bool strips_leading_space = false;  // by the decoder
  std::vector<int32_t> before;        // token ids that the post-processor puts before a text
  std::vector<int32_t> after;         // and after it

  // Reads "normalizer", "pre_tokenizer", "post_processor" and "decoder".
  // Errors: InvalidArgument for malformed parts; Unimplemented with the name of an unsupported
  // part.
  static absl::StatusOr<JsonPipeline> parse(const nlohmann::json& file);
};

}  // namespace tessera
