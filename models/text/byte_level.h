#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/text/bpe_vocabulary.h"
#include "models/text/plain_encoder.h"
#include "models/text/split_pattern.h"

namespace tessera {

// Byte-level vocabularies write each byte as a printable character: "Ġthe" is " the". The bytes a
// vocabulary's text stands for; nothing if a character of it stands for none.
std::optional<std::string> decode_byte_level(std::string_view text);

// How GPT-2 cuts text into words; the default of the pre-tokenizer "ByteLevel".
extern const char* const kGpt2Pattern;

struct ByteLevelSettings {
  std::vector<SplitPattern> patterns;  // one after the other, each cuts what the last one left
  bool add_prefix_space = false;
};

// BPE over bytes. `vocabulary` holds bytes, not their printable form.
std::unique_ptr<PlainEncoder> make_byte_level_encoder(BpeVocabulary vocabulary,
                                                      ByteLevelSettings settings);

}  // namespace tessera
