#include "server/grammar/make_spec.h"

#include <fmt/format.h>

#include <utility>

#include "base/status_macros.h"
#include "server/grammar/grammar_compiler.h"
#include "server/grammar/schema.h"
#include "server/json/ordered_members.h"

namespace tessera {
namespace {

// Returns: the text as a terminal of GBNF. Control characters have four digits: of an escape with
// \x the compiler reads as many as there are.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace

absl::StatusOr<GrammarSpec> schema_spec(const nlohmann::ordered_json& schema, std::string field) {
  TESSERA_ASSIGN_OR_RETURN(std::string prepared, prepare_schema(schema));
  return GrammarSpec{GrammarSpec::Kind::json_schema, std::move(prepared), std::move(field)};
}

absl::StatusOr<GrammarSpec> schema_text_spec(const std::string& schema, std::string field) {
  const absl::StatusOr<nlohmann::ordered_json> parsed = parse_ordered(schema);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError("is not the text of a JSON schema");
  }
  return schema_spec(*parsed, std::move(field));
}

absl::StatusOr<GrammarSpec> choice_spec(std::span<const std::string> choices, std::string field) {
  std::string rule;
  for (const std::string& choice : choices) {
    if (choice.empty()) {
      return absl::InvalidArgumentError("must be a list of texts that are not empty");
    }
    rule += (rule.empty() ? "root ::= " : " | ") + quoted(choice);
  }
  return notation_spec(GrammarSpec::Kind::gbnf, std::move(rule), std::move(field));
}

absl::StatusOr<GrammarSpec> notation_spec(GrammarSpec::Kind kind, std::string text,
                                          std::string field) {
  GrammarSpec spec{kind, std::move(text), std::move(field)};
  TESSERA_RETURN_IF_ERROR(check_notation(spec));
  return spec;
}

}  // namespace tessera
