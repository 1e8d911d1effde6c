#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tessera {

// Returns: the JSON text of a Python literal (a number, string, list, tuple, dict, True, False or
// None); nothing for any other text.
std::optional<std::string> python_to_json(std::string_view literal);

}  // namespace tessera
