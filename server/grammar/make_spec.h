#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "server/grammar/grammar_spec.h"

namespace tessera {

// Make the specs that a client may ask for. `field` is the client's name for it.
// Errors: InvalidArgument, a text that follows the field's name ("must be ...").
absl::StatusOr<GrammarSpec> schema_spec(const nlohmann::ordered_json& schema, std::string field);
absl::StatusOr<GrammarSpec> schema_text_spec(const std::string& schema, std::string field);
absl::StatusOr<GrammarSpec> choice_spec(std::span<const std::string> choices, std::string field);
// Requires: a kind among regex, gbnf and structural_tag.
absl::StatusOr<GrammarSpec> notation_spec(GrammarSpec::Kind kind, std::string text,
                                          std::string field);

}  // namespace tessera
