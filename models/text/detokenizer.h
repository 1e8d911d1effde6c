#pragma once

#include <cstdint>
#include <string>

#include "models/text/tokenizer.h"

namespace tessera {

// Turns a stream of token ids into text, never emitting half a UTF-8 character: bytes of an
// unfinished character are held back until it is complete. Bytes that can never become a
// character come out as U+FFFD.
class Detokenizer {
 public:
  struct Options {
    bool keep_special = false;
    bool continues_text = false;  // follows earlier text (a prompt): keep a leading space
  };

  // `tokenizer` must outlive this.
  Detokenizer(const Tokenizer& tokenizer, Options options);

  // The text that became printable with this token; may be empty.
  std::string push(int32_t id);

  // What is still held back, U+FFFD for an unfinished character. Call once, at the end.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  Options options_;
  bool at_start_;
  std::string pending_;  // at most 3 bytes: the beginning of a character
};

}  // namespace tessera
