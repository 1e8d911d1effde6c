#pragma once

#include <memory>
#include <string_view>

#include "text/plain_encoder.h"
#include "text/sentencepiece_model.h"

namespace tessera {

// A space in sentencepiece's pieces: U+2581.
inline constexpr std::string_view kMetaspace = "\xE2\x96\x81";

// Position of sentencepiece's dummy prefix, a space that gives the first word of a text the same
// form as any other word.
enum class SpacePrefix {
  never,
  first,   // only at the beginning of the text: Hugging Face's legacy=false
  always,  // also after each special token: legacy=true, as in the first Llama releases
};

// Returns: an encoder for sentencepiece's BPE, which merges by score. Unknown characters become
// bytes if the model has byte_fallback, else the unknown token.
// Requires: `model` comes from SentencePieceModel::parse.
std::unique_ptr<PlainEncoder> make_sentencepiece_encoder(const SentencePieceModel& model,
                                                         SpacePrefix prefix);

}  // namespace tessera
