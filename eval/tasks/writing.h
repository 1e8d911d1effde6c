#pragma once

#include <cstdint>
#include <string_view>

#include "eval/tasks/task.h"
#include "text/tokenizer.h"

namespace tessera {

struct TextWindows {
  int32_t prompt = 0;  // tokens of each window that form the prompt
  int32_t forced = 0;  // tokens that are then forced, one per step
  int32_t most = 0;    // number of windows, the first of the text; 0: all
};

// Splits a text into windows that do not overlap, for perplexity, KL divergence and top-1
// agreement, within a prompt and in decode. Formats that drop or demote act at a prompt's end and
// later, so both matter.
// Requires: the text has at least two tokens.
Task make_text(std::string_view text, const TextWindows& windows, const Tokenizer& tokenizer);

// The same windows, each as a prompt and its continuation: the distributions of the forced tokens
// are compared, and not the prompt's.
Task make_continuation(std::string_view text, const TextWindows& windows,
                       const Tokenizer& tokenizer);

// Few-shot copying of short lists.
Task make_copy(int32_t items, int32_t length, const Tokenizer& tokenizer, uint64_t seed);

// The reference generates `tokens` tokens, which are forced on every other subject. Shows if the
// distance grows with the length of the text.
Task make_generation(int32_t items, int32_t tokens, const Tokenizer& tokenizer, uint64_t seed);

}  // namespace tessera
