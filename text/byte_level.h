#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/bpe_vocabulary.h"
#include "text/plain_encoder.h"
#include "text/split_pattern.h"

namespace tessera {

// Byte-level vocabularies write each byte as a printable character: "Ġthe" is " the".
// Returns: the bytes of a vocabulary entry, or nullopt if a character of it encodes no byte.
std::optional<std::string> decode_byte_level(std::string_view text);

// GPT-2's regular expression for words; the default of the pre-tokenizer "ByteLevel".
extern const char* const kGpt2Pattern;

struct ByteLevelSettings {
  std::vector<SplitPattern> patterns;  // applied in order, each to the parts of the previous one
  bool add_prefix_space = false;
};

// Returns: an encoder that runs BPE over bytes. `vocabulary` holds bytes, not their printable form.
std::unique_ptr<PlainEncoder> make_byte_level_encoder(BpeVocabulary vocabulary,
                                                      ByteLevelSettings settings);

}  // namespace tessera
