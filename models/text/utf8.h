#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera {

// What a text begins with.
struct Utf8Step {
  enum class Kind { valid, invalid, incomplete };
  Kind kind;
  size_t size;  // bytes; of an invalid sequence those that one U+FFFD stands for (Unicode 3.9)
  char32_t character;  // if valid
};

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// Requires: `text` is not empty. `incomplete` means that more bytes could still make it valid.
Utf8Step next_utf8(std::string_view text);

// The text itself, or with U+FFFD where it was not UTF-8.
std::string repair_utf8(std::string_view text);

bool is_valid_utf8(std::string_view text);

void append_utf8(std::string& text, char32_t character);

// Whether the character is white space by Unicode (property White_Space).
bool is_unicode_space(char32_t character);

}  // namespace tessera
