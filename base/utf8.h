#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera {

// The first character of a text, or the invalid bytes at its beginning.
struct Utf8Step {
  enum class Kind { valid, invalid, incomplete };
  Kind kind;
  size_t size;         // bytes; if invalid, those that one U+FFFD replaces (Unicode 3.9)
  char32_t character;  // set if valid
};

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// Decodes the first character. `incomplete` means that more bytes could still make it valid.
// Requires: `text` is not empty.
Utf8Step next_utf8(std::string_view text);

// Returns: the text, with invalid UTF-8 replaced by U+FFFD.
std::string repair_utf8(std::string_view text);

bool is_valid_utf8(std::string_view text);

// Returns: true for a byte that cannot begin a character of valid UTF-8.
constexpr bool continues_utf8(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
}

void append_utf8(std::string& text, char32_t character);

// Returns: true for white space of Unicode (property White_Space).
bool is_unicode_space(char32_t character);

}  // namespace tessera
