#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "text/jinja/value.h"

namespace tessera {

// Reads JSON text that a client wrote as a value of a template. Objects keep the order of their
// keys. All strings and keys count as text of messages.
// Errors: InvalidArgument for a syntax error, or if the value is too large (Value::list).
absl::StatusOr<jinja::Value> parse_json_value(std::string_view text);

}  // namespace tessera
