#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tessera::load {

// The parser and the printer of nlohmann/json compile slowly, so only json_text.cpp has them.

// Returns: a discarded value if the text is not JSON.
nlohmann::json parse_json(std::string_view text);

// Returns: one line. Bytes that are not UTF-8 become U+FFFD.
std::string print_json(const nlohmann::json& value);

// Returns: several lines, indented by one column a level. Bytes as above.
std::string print_lines(const nlohmann::ordered_json& value);

}  // namespace tessera::load
