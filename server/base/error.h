#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace tessera {

// Error in a client's field, as OpenAI reports it. `param` names the field ("messages[1].role").
// `code` is a machine-readable word, or empty.
absl::Status invalid_field(std::string_view param, std::string_view message,
                           std::string_view code = {});

// Returns: `status` with the param or code that print_error() reports besides its message.
absl::Status with_param(absl::Status status, std::string_view param);
absl::Status with_code(absl::Status status, std::string_view code);

// The only mapping of a status to an HTTP code.
int http_status(const absl::Status& status);

// Returns: {"error":{"message","type","param","code"}}.
// Requires: `status` is not OK.
std::string print_error(const absl::Status& status);

}  // namespace tessera
