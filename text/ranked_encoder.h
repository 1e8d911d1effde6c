#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "text/bpe_vocabulary.h"
#include "text/plain_encoder.h"
#include "text/split_pattern.h"

namespace tessera {

// A vocabulary of byte strings in the order of their merges, as tiktoken has it: the two neighbours
// whose concatenation has the lowest rank are merged first. It needs no list of merges.
struct RankedVocabulary {
  std::unordered_map<std::string, uint32_t, BpeVocabulary::Hash, std::equal_to<>> ranks;
  int32_t first_id = 0;  // the id of rank 0
};

// Returns: an encoder of the words that `pattern` finds.
// Requires: all 256 bytes have a rank.
std::unique_ptr<PlainEncoder> make_ranked_encoder(RankedVocabulary vocabulary,
                                                  SplitPattern pattern);

}  // namespace tessera
