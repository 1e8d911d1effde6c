#include "server/telemetry/log_text.h"

#include <fmt/format.h>

namespace tessera {
namespace {

std::string hexadecimal(char byte) {
  return fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
}

}  // namespace

std::string escape_controls(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const int next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    if (c == '\xc2' && next >= 0x80 && next <= 0x9f) {  // U+0080 to U+009F in UTF-8
      out += hexadecimal(c) + hexadecimal(text[i + 1]);
      ++i;
    } else if ((c >= '\0' && c < ' ') || c == '\x7f') {
      out += hexadecimal(c);
    } else {
      out += c;
    }
  }
  return out;
}

std::string log_word(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c > ' ' && c < '\x7f') {
      out += c;
    } else {
      out += hexadecimal(c);
    }
  }
  return out;
}

}  // namespace tessera
