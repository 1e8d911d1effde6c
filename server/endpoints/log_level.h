#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera {

// Returns: the level that a body of /v1/log-level names. set_log_level() checks it.
// Errors: InvalidArgument with the field's name.
absl::StatusOr<std::string> parse_log_level_request(std::string_view body);

}  // namespace tessera
