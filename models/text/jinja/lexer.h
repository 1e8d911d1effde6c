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
    symbol,  // an operator or a bracket
    end,
  };
  Kind kind;
  std::string text;  // of strings without quotes and escapes
  int line;
};

// A template's tokens, the last of kind `end`. White space around tags is handled as transformers
// sets Jinja up: trim_blocks (a line break right after a statement goes), lstrip_blocks (so do
// blanks in front of one that is first on its line), the template's last line break goes.
absl::StatusOr<std::vector<Token>> tokenize(std::string_view source);

}  // namespace tessera::jinja
