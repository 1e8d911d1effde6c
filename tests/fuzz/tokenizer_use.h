#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/tokenizer.h"

namespace tessera {

// Encodes `text` with and without special tokens, and looks up token ids, invalid ones included.
inline void use_tokenizer(const Tokenizer& tokenizer, std::string_view text) {
  const std::string half(text.substr(0, text.size() / 2));
  const std::string rest(text.substr(text.size() / 2));
  for (const bool parse_special : {false, true}) {
    const TextSegment segments[] = {{half, parse_special}, {rest, true}};
    for (const int32_t id : tokenizer.encode(segments, parse_special)) {
      TESSERA_CHECK(id >= 0 && id < tokenizer.vocab_size(), "an id that is no token");
    }
  }
  for (int32_t id = -1; id <= std::min(tokenizer.vocab_size(), 300); ++id) {
    (void)tokenizer.token_bytes(id, id % 2 == 0);
    (void)tokenizer.is_special(id);
  }
}

}  // namespace tessera
