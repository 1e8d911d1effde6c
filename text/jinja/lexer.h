#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::jinja {

struct Token {
  enum class Kind {
    text,             // between tags
    begin_statement,  // {%
    end_statement,    // %}
    begin_output,     // {{
    end_output,       // }}
    name,
    string,
    integer,
    number,
    symbol,  // operator or bracket
    end,
  };
  Kind kind;
  std::string text;  // strings: without quotes, escapes decoded
  int line;
};

// Returns: the tokens of a template; the last one has the kind `end`. White space around tags is
// handled as in transformers. trim_blocks removes a line break directly after a statement.
// lstrip_blocks removes blanks before a statement that is first on its line. The last line break of
// the template is removed.
// Errors: InvalidArgument with the line.
absl::StatusOr<std::vector<Token>> tokenize(std::string_view source);

}  // namespace tessera::jinja
