#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

// Reads the arguments of a call in a history. A text is kept as it is, even if it is no JSON: an
// answer that max_tokens cut off comes back like this. Null, an empty text and an empty list, as
// some languages write an object without members, are {}.
// `raw`: returns the value as the body has it. It is called for objects and lists only.
// Returns: nothing for a number or a boolean.
std::optional<std::string> call_arguments(const nlohmann::json& value,
                                          const std::function<std::string_view()>& raw);

}  // namespace tessera
