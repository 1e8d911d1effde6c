#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "text/piece_tokenizer.h"
#include "text/sentencepiece_encoder.h"

namespace tessera {
namespace {

using Piece = SentencePieceModel::Piece;
using Type = SentencePieceModel::Type;

std::string printed(const Piece& piece) {
  if (piece.type == Type::byte) return {SentencePieceModel::byte_of(piece)};
  std::string text = piece.text;
  for (size_t at = text.find(kMetaspace); at != std::string::npos; at = text.find(kMetaspace, at)) {
    text.replace(at, kMetaspace.size(), " ");
  }
  return text;
}

bool is_ordinary(const Piece& piece) {
  return piece.type == Type::normal || piece.type == Type::byte;
}

// Adds the tokens of the configuration. A piece that it declares special becomes a control piece,
// so that text without parse_special cannot merge into it.
absl::Status add_configured(const TokenizerConfig& config, SentencePieceModel& model,
                            AddedTokens& added) {
  for (const AddedToken& token : config.added_tokens) {
    const auto id = static_cast<size_t>(token.id);
    if (id >= model.pieces.size()) {
      TESSERA_RETURN_IF_ERROR(added.add(token));
      continue;
    }
    Piece& piece = model.pieces[id];
    if (piece.text != token.content && is_ordinary(piece)) {
      return absl::InvalidArgumentError("added token " + std::to_string(id) + " \"" +
                                        token.content + "\" is the vocabulary's piece \"" +
                                        piece.text + "\"");
    }
    if (piece.type == Type::user_defined && !token.special) continue;  // the encoder matches it
    TESSERA_RETURN_IF_ERROR(added.add(token));
    if (piece.type != Type::unknown && piece.type != Type::byte) piece.type = Type::control;
  }
  return absl::OkStatus();
}

absl::Status add_control_pieces(const TokenizerConfig& config, SentencePieceModel& model,
                                AddedTokens& added) {
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    Piece& piece = model.pieces[i];
    const auto id = static_cast<int32_t>(i);
    if (piece.type != Type::byte && config.special_texts.count(piece.text) != 0 &&
        piece.type != Type::unknown) {
      piece.type = Type::control;
    }
    const bool special = piece.type == Type::control || piece.type == Type::unknown;
    if (!special || added.find_id(id) != nullptr) continue;
    AddedToken token;
    token.id = id;
    token.content = piece.text;
    token.special = true;
    TESSERA_RETURN_IF_ERROR(added.add(std::move(token)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<int32_t>> find_role(const TokenizerConfig::Role& role,
                                                 const std::string& default_text,
                                                 const AddedTokens& added) {
  if (role.stated && !role.text) return std::nullopt;
  const AddedToken* token = added.find(role.stated ? *role.text : default_text);
  if (token != nullptr) return token->id;
  if (!role.stated) return std::nullopt;
  return absl::InvalidArgumentError("\"" + *role.text + "\" of tokenizer_config.json is no token");
}

SpacePrefix prefix_of(const SentencePieceModel& model, const TokenizerConfig& config) {
  if (!model.add_dummy_prefix || !config.add_prefix_space.value_or(true)) return SpacePrefix::never;
  return config.legacy.value_or(true) ? SpacePrefix::always : SpacePrefix::first;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> make_sentencepiece_tokenizer(
    SentencePieceModel model, const TokenizerConfig& config) {
  PieceTokenizerParts parts;
  TESSERA_RETURN_IF_ERROR(add_configured(config, model, parts.added));
  TESSERA_RETURN_IF_ERROR(add_control_pieces(config, model, parts.added));
  TESSERA_ASSIGN_OR_RETURN(parts.bos, find_role(config.bos_token, model.bos_piece, parts.added));
  TESSERA_ASSIGN_OR_RETURN(parts.eos, find_role(config.eos_token, model.eos_piece, parts.added));
  if (config.add_bos_token.value_or(true) && parts.bos) parts.bos_prefix = {*parts.bos};
  if (config.add_eos_token.value_or(false) && parts.eos) parts.text_end = {*parts.eos};
  for (const Piece& piece : model.pieces) parts.pieces.push_back({printed(piece), false});
  put_added_pieces(parts);
  parts.encoder = make_sentencepiece_encoder(model, prefix_of(model, config));
  parts.strips_leading_space = parts.encoder->adds_leading_space();
  return make_piece_tokenizer(std::move(parts));
}

}  // namespace tessera
