#pragma once

#include <string>
#include <string_view>

namespace tessera {

// Returns: the text as it may stand in quotes in a header: printable ASCII, with an apostrophe in
// place of each other byte, of quotes and of backslashes.
std::string header_text(std::string_view text);

}  // namespace tessera
