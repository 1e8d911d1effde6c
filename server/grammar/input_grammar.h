#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera {

// Makes the grammar of a JSON string whose text follows a grammar of the client.
// syntax: "lark" or "regex". `before` and `after`: the texts around the inside of the string.
// Returns: a grammar in llama.cpp's notation.
// Errors: InvalidArgument for a grammar that cannot be converted (lark.h, json_text_regex.h), or
// that is too large.
absl::StatusOr<std::string> input_grammar(std::string_view syntax, std::string_view definition,
                                          std::string_view before, std::string_view after);

}  // namespace tessera
