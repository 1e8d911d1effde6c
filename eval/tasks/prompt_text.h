#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace tessera {

// Returns: token ids of a text as in a request: with the BOS that the checkpoint's own settings ask
// for.
std::vector<int32_t> encode_text(const Tokenizer& tokenizer, std::string_view text);

struct SplitIds {
  std::vector<int32_t> prompt;        // never empty
  std::vector<int32_t> continuation;  // empty only for an empty continuation
};

// Returns: the ids of context + continuation, split at the number of ids of the context alone.
// White space at the end of the context moves to the continuation, because tokenizers merge it
// there. This is the rule of lm-evaluation-harness, so that log likelihoods are comparable with its
// results.
SplitIds encode_split(const Tokenizer& tokenizer, std::string_view context,
                      std::string_view continuation);

// Returns: the text of ids that continue other text.
std::string decode_continuation(const Tokenizer& tokenizer, const std::vector<int32_t>& ids);

}  // namespace tessera
