#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/text/tokenizer.h"

namespace tessera {

// The ids of a text as a request's: with the BOS that the checkpoint's own settings ask for.
std::vector<int32_t> encode_text(const Tokenizer& tokenizer, std::string_view text);

struct SplitIds {
  std::vector<int32_t> prompt;        // never empty
  std::vector<int32_t> continuation;  // empty only for an empty continuation
};

// The ids of context + continuation, cut where the ids of the context alone would end. White space
// at the context's end belongs to the continuation, where tokenizers merge it. This is the rule of
// lm-evaluation-harness, so that log likelihoods are comparable with its.
SplitIds encode_split(const Tokenizer& tokenizer, std::string_view context,
                      std::string_view continuation);

// The text of ids that continue other text.
std::string decode_continuation(const Tokenizer& tokenizer, const std::vector<int32_t>& ids);

}  // namespace tessera
