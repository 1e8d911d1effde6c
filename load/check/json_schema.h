#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace tessera::load {

// The part of JSON Schema that is checked: type, enum, const, properties, required,
// additionalProperties, items, minItems, maxItems, minimum, maximum, minLength, maxLength, anyOf.
// Annotations (title, description, default, examples, $schema, $id) are ignored.
// Errors: Unimplemented names any other keyword and its place.
absl::Status check_schema(const nlohmann::json& schema);

// Returns: why `text` is not JSON that fits the schema; empty if it fits.
// Requires: check_schema(schema) is ok.
std::string schema_violation(std::string_view text, const nlohmann::json& schema);

}  // namespace tessera::load
