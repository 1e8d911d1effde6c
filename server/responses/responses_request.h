#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/request/completion_request.h"

namespace tessera {

// A request of /v1/responses. Its one prompt is a Conversation of the input alone.
struct ResponsesRequest {
  CompletionRequest completion;
  std::string instructions{};       // stand before everything else; empty: none
  std::string previous{};           // the stored response that the input continues; empty: none
  bool store = true;                // keeps the response for later requests
  bool truncate = false;            // drops the oldest turns if the conversation is too long
  nlohmann::ordered_json repeated;  // fields that the answer repeats
};

// Parses and checks a body of /v1/responses. The sampling options of the other dialects are taken
// too. An unknown field is refused. Tools and items that OpenAI alone serves are left out with a
// warning.
// Errors: InvalidArgument with the field's name (server/base/error.h).
absl::StatusOr<ResponsesRequest> parse_responses_request(std::string_view body);

}  // namespace tessera
