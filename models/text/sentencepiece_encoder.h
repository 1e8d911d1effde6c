#pragma once

#include <memory>

#include "models/text/plain_encoder.h"
#include "models/text/sentencepiece_model.h"

namespace tessera {

// Where sentencepiece's dummy prefix (a space that makes a text's first word look like any other)
// goes.
enum class SpacePrefix {
  never,
  first,   // at the text's beginning only: Hugging Face's legacy=false
  always,  // and after each special token: legacy=true, as the first Llama releases did
};

// Sentencepiece's BPE: merges by score, unknown characters as bytes. `model` has been parsed
// without error.
std::unique_ptr<PlainEncoder> make_sentencepiece_encoder(const SentencePieceModel& model,
                                                         SpacePrefix prefix);

}  // namespace tessera
