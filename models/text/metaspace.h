#pragma once

#include <array>
#include <memory>
#include <string_view>

#include "models/text/bpe_vocabulary.h"
#include "models/text/plain_encoder.h"
#include "models/text/sentencepiece_encoder.h"

namespace tessera {

// How sentencepiece-style vocabularies of a tokenizer.json see text.
struct MetaspaceSettings {
  bool marks_spaces = false;  // a space is "▁" in the vocabulary
  SpacePrefix prefix = SpacePrefix::never;
  bool prefix_unless_space = false;  // no prefix where the text begins with a space
  bool splits_words = false;         // merges do not cross a space's front
};

// BPE over characters. `bytes`: the ids of "<0x00>" and on, -1 where there is none.
std::unique_ptr<PlainEncoder> make_metaspace_encoder(BpeVocabulary vocabulary,
                                                     MetaspaceSettings settings,
                                                     const std::array<int32_t, 256>& bytes);

}  // namespace tessera
