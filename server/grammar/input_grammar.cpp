#include "server/grammar/input_grammar.h"

#include <fmt/format.h>

#include <utility>

#include "base/status_macros.h"
#include "server/grammar/json_text.h"
#include "server/grammar/json_text_regex.h"
#include "server/grammar/lark.h"
#include "server/grammar/make_spec.h"

namespace tessera {

absl::StatusOr<std::string> input_grammar(std::string_view syntax, std::string_view definition,
                                          std::string_view before, std::string_view after) {
  constexpr std::size_t kMaxDefinition = 64 << 10;
  std::string start;
  std::string rules;
  if (definition.size() > kMaxDefinition) {
    return absl::InvalidArgumentError(fmt::format("has more than {} bytes", kMaxDefinition));
  }
  if (syntax == "regex") {
    TESSERA_ASSIGN_OR_RETURN(start, regex_expression(definition));
  } else if (syntax == "lark") {
    TESSERA_ASSIGN_OR_RETURN(rules, lark_rules(definition));
    start = kLarkStart;
  } else {
    return absl::InvalidArgumentError("has a syntax that is neither lark nor regex");
  }
  std::string text =
      fmt::format("root ::= {} {} {}\n{}", terminal(before), start, terminal(after), rules);
  TESSERA_RETURN_IF_ERROR(notation_spec(GrammarSpec::Kind::gbnf, text, "").status());
  return text;
}

}  // namespace tessera
