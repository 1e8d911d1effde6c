#pragma once

#include <string>
#include <string_view>

namespace tessera {

// Returns: a text as a string of JSON. Bytes that are no UTF-8 become U+FFFD.
std::string json_string(std::string_view text);

}  // namespace tessera
