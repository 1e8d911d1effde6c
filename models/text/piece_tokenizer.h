#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/text/added_token.h"
#include "models/text/plain_encoder.h"
#include "models/text/sentencepiece_model.h"
#include "models/text/tokenizer.h"
#include "models/text/tokenizer_config.h"

namespace tessera {

// What a token prints as.
struct TokenPiece {
  std::string bytes;  // of a special token its content
  bool special = false;
};

// The frame all vocabularies share: added tokens are cut out, the rest goes to the encoder.
struct PieceTokenizerParts {
  std::vector<TokenPiece> pieces;  // their index is the id
  AddedTokens added;
  std::unique_ptr<PlainEncoder> encoder;
  std::vector<int32_t> bos_prefix;  // what encode() puts first with `add_bos`
  std::optional<int32_t> bos;
  std::optional<int32_t> eos;
  bool strips_leading_space = false;
};

// Adds each added token's piece, growing `pieces` as far as its id asks.
void put_added_pieces(PieceTokenizerParts& parts);

std::unique_ptr<Tokenizer> make_piece_tokenizer(PieceTokenizerParts parts);

// A sentencepiece `tokenizer.model` in its directory's setting. Control and unknown pieces are
// special tokens, and so is each piece that `config` says is one.
absl::StatusOr<std::unique_ptr<Tokenizer>> make_sentencepiece_tokenizer(
    SentencePieceModel model, const TokenizerConfig& config);

}  // namespace tessera
