#include "text/piece_tokenizer.h"

#include <utility>

namespace tessera {
namespace {

class PieceTokenizer final : public Tokenizer {
 public:
  explicit PieceTokenizer(PieceTokenizerParts parts) : parts_(std::move(parts)) {}

  std::vector<int32_t> encode(std::span<const TextSegment> segments, bool add_bos) const override {
    std::vector<int32_t> ids;
    if (add_bos) ids = parts_.bos_prefix;
    std::string text;
    for (const TextChunk& chunk : parts_.added.split(segments, text)) {
      if (chunk.token) {
        ids.push_back(*chunk.token);
      } else {
        parts_.encoder->encode(chunk.text, chunk.begins_text, ids);
      }
    }
    return ids;
  }

  std::span<const int32_t> text_end() const override { return parts_.text_end; }

  std::string token_bytes(int32_t id, bool keep_special) const override {
    if (!known(id)) return {};
    const TokenPiece& piece = parts_.pieces[static_cast<size_t>(id)];
    return piece.special && !keep_special ? std::string() : piece.bytes;
  }

  bool strips_leading_space() const override { return parts_.strips_leading_space; }

  bool is_special(int32_t id) const override {
    return known(id) && parts_.pieces[static_cast<size_t>(id)].special;
  }

  std::optional<int32_t> special_id(std::string_view text) const override {
    const AddedToken* token = parts_.added.find(text);
    if (token == nullptr || !token->special) return std::nullopt;
    return token->id;
  }

  int32_t vocab_size() const override { return static_cast<int32_t>(parts_.pieces.size()); }
  std::optional<int32_t> bos_id() const override { return parts_.bos; }
  std::optional<int32_t> eos_id() const override { return parts_.eos; }

 private:
  bool known(int32_t id) const { return id >= 0 && static_cast<size_t>(id) < parts_.pieces.size(); }

  const PieceTokenizerParts parts_;
};

}  // namespace

void put_added_pieces(PieceTokenizerParts& parts) {
  for (const AddedToken& token : parts.added.tokens()) {
    const auto id = static_cast<size_t>(token.id);
    if (id >= parts.pieces.size()) parts.pieces.resize(id + 1);
    parts.pieces[id] = TokenPiece{token.content, token.special};
  }
}

std::unique_ptr<Tokenizer> make_piece_tokenizer(PieceTokenizerParts parts) {
  return std::make_unique<PieceTokenizer>(std::move(parts));
}

}  // namespace tessera
