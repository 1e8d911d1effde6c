#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera {

// Converts a regular expression, which matches a whole text, to an expression of llama.cpp's
// notation for that text inside of a JSON string. \d, \w and their opposites are ASCII's.
// `flags`: of Lark's terminals: i (no case) and s (a dot matches line breaks).
// Errors: InvalidArgument for a part that no grammar has (look-around, references, \b, \p, anchors
// within), and for an expression nested too deeply.
absl::StatusOr<std::string> regex_expression(std::string_view regex, std::string_view flags = {});

}  // namespace tessera
