#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace tessera {

// An error of a client's field, as OpenAI reports it: `param` names the field ("messages[1].role"),
// `code` is a word for programs, or empty.
absl::Status invalid_field(std::string_view param, std::string_view message,
                           std::string_view code = {});

// `status` with what print_error() reports besides its message.
absl::Status with_param(absl::Status status, std::string_view param);
absl::Status with_code(absl::Status status, std::string_view code);

// The one place where a status becomes an HTTP code.
int http_status(const absl::Status& status);

// {"error":{"message","type","param","code"}}, for a status that is not OK.
std::string print_error(const absl::Status& status);

}  // namespace tessera
