#pragma once

#include <cstdint>
#include <string_view>

#include "eval/tasks/task.h"
#include "models/text/tokenizer.h"

namespace tessera {

struct TextWindows {
  int32_t prompt = 0;  // tokens of each window that are a prompt
  int32_t forced = 0;  // tokens that are then forced, one a step
};

// A text cut into windows that do not overlap: perplexity, KL divergence and top-1 agreement,
// within a prompt and in decoding. Formats that drop or demote act at a prompt's end and later, so
// both matter. `name` is the text's. Requires: the text has at least two tokens.
Task make_text(std::string_view text, const TextWindows& windows, const Tokenizer& tokenizer);

// Few-shot copying of short lists.
Task make_copy(int32_t items, int32_t length, const Tokenizer& tokenizer, uint64_t seed);

// The reference writes `tokens` tokens, and every other subject is led along them: does the
// distance grow the longer the text becomes?
Task make_generation(int32_t items, int32_t tokens, const Tokenizer& tokenizer, uint64_t seed);

}  // namespace tessera
