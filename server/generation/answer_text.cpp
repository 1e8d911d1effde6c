#include "server/generation/answer_text.h"

#include <algorithm>

namespace tessera {

int64_t count_characters(std::string_view utf8) {
  return std::count_if(utf8.begin(), utf8.end(),
                       [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; });
}

}  // namespace tessera
