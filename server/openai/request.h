#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/request/completion_request.h"
#include "server/request/tokenize_request.h"

namespace tessera {

struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> tokens;
};

// Parse and check a body. A field that is unknown, or that asks for a missing feature, is refused.
// Only values that ask for nothing are ignored (see unsupported.h). Tools that this server cannot
// run are left out with a warning.
// Errors: InvalidArgument with the field's name (error.h).
absl::StatusOr<CompletionRequest> parse_completion_request(std::string_view body);
absl::StatusOr<CompletionRequest> parse_chat_request(std::string_view body);
// Of /tokenize: accepts the names of vLLM (prompt or messages, add_special_tokens) and of
// llama-server (content, add_special).
absl::StatusOr<TokenizeRequest> parse_tokenize_request(std::string_view body);
absl::StatusOr<DetokenizeRequest> parse_detokenize_request(std::string_view body);

}  // namespace tessera
