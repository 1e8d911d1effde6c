#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera {

inline constexpr std::string_view kLarkStart = "lark_start";

// Converts a grammar in Lark's notation to rules of llama.cpp's notation for its texts inside of a
// JSON string. The rule `start` becomes kLarkStart.
// Errors: InvalidArgument for a part that is not converted: %ignore, templates, imports of other
// grammars than `common`, and those of regex_expression().
absl::StatusOr<std::string> lark_rules(std::string_view lark);

}  // namespace tessera
