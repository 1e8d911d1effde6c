#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "server/openai/request.h"

namespace tessera {

// Parses a body of /v1/cache/export: that of a chat, or that of a completion with one prompt.
// Errors: InvalidArgument with the field's name.
absl::StatusOr<CompletionRequest> parse_export_request(std::string_view body);

}  // namespace tessera
