#pragma once

#include <string>
#include <string_view>

namespace tessera {

// Texts of clients in lines of the log. A newline would forge a line, and an escape sequence is a
// command to the terminal that shows the log.

// Returns: the text with its control characters, of ASCII and of Unicode (C1), in the form \x1b.
std::string escape_controls(std::string_view text);

// Returns: the text as one word. All bytes but visible ASCII have that form, and a backslash is
// doubled.
std::string log_word(std::string_view text);

}  // namespace tessera
