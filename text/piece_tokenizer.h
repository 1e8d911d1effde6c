#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "text/added_token.h"
#include "text/plain_encoder.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace tessera {

// The printed form of a token.
struct TokenPiece {
  std::string bytes;  // for a special token: its content
  bool special = false;
};

// The parts of a tokenizer, for every kind of vocabulary. Added tokens are split off first, and the
// encoder encodes the rest.
struct PieceTokenizerParts {
  std::vector<TokenPiece> pieces;  // indexed by token id
  AddedTokens added;
  std::unique_ptr<PlainEncoder> encoder;
  std::vector<int32_t> bos_prefix;  // ids that encode() puts first with `add_bos`
  std::vector<int32_t> text_end;    // see Tokenizer::text_end
  std::optional<int32_t> bos;
  std::optional<int32_t> eos;
  bool strips_leading_space = false;
};

// Sets the piece of each added token; grows `pieces` if an id is beyond its end.
void put_added_pieces(PieceTokenizerParts& parts);

std::unique_ptr<Tokenizer> make_piece_tokenizer(PieceTokenizerParts parts);

// Returns: the tokenizer of a sentencepiece `tokenizer.model` and the configuration beside it.
// Special tokens are control pieces, unknown pieces and pieces that `config` declares special.
// Errors: InvalidArgument if `config` contradicts the vocabulary.
absl::StatusOr<std::unique_ptr<Tokenizer>> make_sentencepiece_tokenizer(
    SentencePieceModel model, const TokenizerConfig& config);

}  // namespace tessera
