#pragma once

#include <array>
#include <memory>
#include <string_view>

#include "text/bpe_vocabulary.h"
#include "text/plain_encoder.h"
#include "text/sentencepiece_encoder.h"

namespace tessera {

// Text normalisation for the sentencepiece-style vocabularies of a tokenizer.json.
struct MetaspaceSettings {
  bool marks_spaces = false;  // the vocabulary writes a space as "▁"
  SpacePrefix prefix = SpacePrefix::never;
  bool prefix_unless_space = false;  // no prefix if the text begins with a space
  bool splits_words = false;         // merges do not cross the position before a space
};

// Returns: an encoder that runs BPE over characters.
// bytes: ids of "<0x00>" to "<0xFF>"; -1 if there is none
std::unique_ptr<PlainEncoder> make_metaspace_encoder(BpeVocabulary vocabulary,
                                                     MetaspaceSettings settings,
                                                     const std::array<int32_t, 256>& bytes);

}  // namespace tessera
