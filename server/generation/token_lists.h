#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "text/tokenizer.h"

namespace tessera {

// Sampling parameters that clients write as texts, as the tokens that the engine expects.

// Returns: the token sequences of bad_words, without duplicates: each text alone, and after
// a space.
// Errors: InvalidArgument with the field if a text has no token.
absl::StatusOr<std::vector<std::vector<int32_t>>> words_of(const Tokenizer& tokenizer,
                                                           const std::vector<std::string>& texts);

// given: texts; no value: those of llama-server, as far as there are tokens for them.
// Returns: a mask of the tokens whose text contains one of the texts; empty without texts. Takes
// time in proportion to the vocabulary.
// Errors: InvalidArgument with the field if no token contains a given text.
absl::StatusOr<std::vector<uint32_t>> breakers_of(
    const Tokenizer& tokenizer, const std::optional<std::vector<std::string>>& given);

}  // namespace tessera
