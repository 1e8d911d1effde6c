#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace tessera {

// Converts a stream of token ids to text and emits complete UTF-8 characters only. Bytes of an
// unfinished character are held back until it is complete. Invalid bytes become U+FFFD.
class Detokenizer {
 public:
  struct Options {
    bool keep_special = false;
    bool continues_text = false;     // continues earlier text (a prompt): keep a leading space
    std::vector<int32_t> printed{};  // special tokens that are printed all the same
  };

  // Requires: `tokenizer` outlives this (not owned).
  Detokenizer(const Tokenizer& tokenizer, Options options);

  // Returns: the text that is complete after this token; may be empty.
  std::string push(int32_t id);

  // Returns: U+FFFD if an unfinished character is held back, else nothing. Call once, at the end.
  std::string finish();

  // Returns: the text of all ids.
  static std::string text_of(const Tokenizer& tokenizer, std::span<const int32_t> ids,
                             Options options);

 private:
  const Tokenizer& tokenizer_;
  Options options_;
  bool at_start_;
  std::string pending_;  // at most 3 bytes: the beginning of a character
};

}  // namespace tessera
