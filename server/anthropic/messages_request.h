#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "server/request/completion_request.h"
#include "server/request/tokenize_request.h"

namespace tessera {

// Parse and check bodies of /v1/messages and /v1/messages/count_tokens. The sampling options of
// the other dialects are taken too. An unknown field or block is refused. Those of
// tools that Anthropic runs are left out with a warning.
// Errors: InvalidArgument with the field's name (server/base/error.h).
absl::StatusOr<CompletionRequest> parse_messages_request(std::string_view body);
absl::StatusOr<TokenizeRequest> parse_count_tokens_request(std::string_view body);

}  // namespace tessera
