#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera {

// OpenAI's older form of tools in a chat: `functions` and `function_call` of the body, and in its
// messages `function_call` and the role `function`. An answer has one call at most.

// Returns: true if a chat's body has one of these. Null is none.
bool has_legacy_functions(const nlohmann::json& body);

// Returns: the same body with `tools`, `tool_choice`, `tool_calls` and the role `tool`.
// Requires: `body` passed parse_body().
// Errors: InvalidArgument with the field, such as "functions[0]"; those of parse_ordered().
absl::StatusOr<std::string> with_tools(std::string_view body);

// Returns: an error in a body of with_tools(), with the older names of its fields.
absl::Status in_legacy_terms(const absl::Status& status);

}  // namespace tessera
