#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "server/grammar/grammar_spec.h"
#include "server/json/body_fields.h"

namespace tessera {

// Names of the members that read_grammar() takes from ordered_members().
inline constexpr std::string_view kGrammarMembers[] = {"response_format", "structured_outputs",
                                                       "guided_json", "json_schema"};

// Reads constraints of a text: OpenAI's response_format, vLLM's structured_outputs and guided_*,
// llama-server's json_schema and grammar.
// Returns: nothing if the body asks for none; errors are in `fields`.
std::optional<GrammarSpec> read_grammar(BodyFields& fields, const nlohmann::ordered_json& ordered);

}  // namespace tessera
