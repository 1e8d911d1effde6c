#include "server/generation/answer_text.h"

#include <algorithm>

#include "base/utf8.h"

namespace tessera {

int64_t count_characters(std::string_view utf8) {
  return std::count_if(utf8.begin(), utf8.end(), [](char c) { return !continues_utf8(c); });
}

}  // namespace tessera
