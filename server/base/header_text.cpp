#include "server/base/header_text.h"

#include <algorithm>

namespace tessera {

std::string header_text(std::string_view text) {
  std::string clean(text);
  std::ranges::replace_if(
      clean, [](char c) { return c < ' ' || c > '~' || c == '"' || c == '\\'; }, '\'');
  return clean;
}

}  // namespace tessera
