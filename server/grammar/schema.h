#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

// Limits of one schema.
inline constexpr int kMaxSchemaDepth = 32;
inline constexpr int kMaxSchemaNodes = 4'000;          // subschemas and alternatives
inline constexpr int64_t kMaxSchemaBytes = 128 << 10;  // as JSON
inline constexpr int64_t kMaxSchemaRepeats = 10'000;   // a bound of lengths and counts

// Makes a JSON schema (draft 2020-12) ready for the grammar compiler, which ignores some keywords.
// Every text that the grammar of the result accepts is valid under `schema`. A keyword for which
// this cannot be promised is refused. Of a `format` only the notation is checked, and nothing if it
// has no grammar, or stands where the compiler would take it for all of the schema. An object
// allows unnamed properties only if the schema says so (`additionalProperties`), or if it names
// none at all; an array likewise.
// Returns: the schema as JSON text, its properties in their order.
// Errors: InvalidArgument with the path of the keyword ("$.properties.age.not").
absl::StatusOr<std::string> prepare_schema(const nlohmann::ordered_json& schema);

// A schema without the keywords for which prepare_schema() would refuse it.
struct RelaxedSchema {
  std::string text;                     // as prepare_schema() returns it
  std::vector<std::string> left_out{};  // the first messages about keywords that are missing
};

// Returns: a schema of all that a grammar can enforce; any object, if the fault is in its whole.
RelaxedSchema relax_schema(const nlohmann::ordered_json& schema);

}  // namespace tessera
