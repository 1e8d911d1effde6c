#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace tessera {

// A file beside the one that is edited.
struct InfillFile {
  std::string name;
  std::string text;
};

// The surroundings of an answer that is the middle of a text, besides the text before it.
struct Infill {
  std::string_view field = "suffix";  // of the body, for errors
  std::string suffix{};
  std::string begin{};              // of the answer
  std::vector<InfillFile> files{};  // before everything else
};

// The tokens by which a family of models was trained to fill in the middle.
struct InfillFormat {
  std::string_view prefix;  // stands before the text
  std::string_view suffix;  // before the suffix
  std::string_view middle;  // before the answer; empty: none
  bool suffix_first = false;
  std::string_view repository{};  // before other files, with a name; empty: none
  std::string_view file{};        // before each file and its name; empty: a line of text
};

// A format, and the tokens at which its answers end besides the model's own ends.
struct InfillTokens {
  const InfillFormat* format = nullptr;
  std::vector<int32_t> ends{};
};

// Returns: the format of which the tokenizer has every token; nothing if there is none.
std::optional<InfillTokens> infill_tokens_of(const Tokenizer& tokenizer);

// Returns: the prompt of an answer between `text` and infill.suffix. `parse_special`: in both of
// these.
std::vector<TextSegment> infill_prompt(const InfillFormat& format, const std::string& text,
                                       const Infill& infill, bool parse_special);

}  // namespace tessera
