#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "server/openai/request.h"

namespace tessera {

// Parse and check bodies of /v1/messages and /v1/messages/count_tokens. The sampling options of
// the other dialects are taken too. A field or block that is unknown is refused.
// Errors: InvalidArgument with the field's name (server/openai/error.h).
absl::StatusOr<CompletionRequest> parse_messages_request(std::string_view body);
absl::StatusOr<TokenizeRequest> parse_count_tokens_request(std::string_view body);

}  // namespace tessera
