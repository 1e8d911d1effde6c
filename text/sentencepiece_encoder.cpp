#include "text/sentencepiece_encoder.h"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/utf8.h"
#include "text/bpe_merge.h"
#include "text/prefix_trie.h"

namespace tessera {
namespace {

using Piece = SentencePieceModel::Piece;
using Type = SentencePieceModel::Type;

struct Entry {
  int32_t id;
  uint32_t rank;  // merge rank by descending score; equal scores have equal ranks
  bool unused;
};

class SentencePieceEncoder final : public PlainEncoder {
 public:
  SentencePieceEncoder(const SentencePieceModel& model, SpacePrefix prefix)
      : pieces_(model.pieces),
        byte_fallback_(model.byte_fallback),
        collapse_spaces_(model.remove_extra_whitespaces),
        prefix_(prefix) {
    std::vector<float> scores;
    for (const Piece& piece : pieces_) scores.push_back(piece.score);
    std::sort(scores.begin(), scores.end(), std::greater<>());
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const Piece& piece = pieces_[i];
      const auto id = static_cast<int32_t>(i);
      const auto rank =
          std::lower_bound(scores.begin(), scores.end(), piece.score, std::greater<>()) -
          scores.begin();
      if (piece.type == Type::byte) {
        bytes_[static_cast<unsigned char>(SentencePieceModel::byte_of(piece))] = id;
      } else if (piece.type == Type::unknown) {
        unknown_ = id;
      } else if (piece.type != Type::control) {
        // Keys are views into pieces_, which is const.
        entries_.emplace(piece.text,
                         Entry{id, static_cast<uint32_t>(rank), piece.type == Type::unused});
      }
      if (piece.type == Type::user_defined) {
        user_defined_.insert(piece.text, 0);
      }
    }
  }

  void encode(std::string_view text, bool begins_text, std::vector<int32_t>& ids) const override {
    const bool prefixed =
        prefix_ == SpacePrefix::always || (prefix_ == SpacePrefix::first && begins_text);
    const std::string normal = normalize(text, prefixed);
    std::vector<BpeSymbol> symbols = split(normal);
    if (symbols.empty()) return;
    // Split offset of each merged piece of type `unused`, by id. Such pieces are split again later.
    std::unordered_map<int32_t, uint32_t> seams;
    merge_symbols(symbols,
                  [&](const BpeSymbol& left, const BpeSymbol& right) -> std::optional<BpeMerge> {
                    const std::string_view both =
                        std::string_view(normal).substr(left.begin, left.size + right.size);
                    const auto found = entries_.find(both);
                    if (found == entries_.end()) return std::nullopt;
                    if (found->second.unused) seams.emplace(found->second.id, left.size);
                    return BpeMerge{found->second.rank, found->second.id};
                  });
    bool after_unknown = false;
    for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
      put(symbols[static_cast<size_t>(i)].of(normal), seams, after_unknown, ids);
    }
  }

  bool adds_leading_space() const override { return prefix_ != SpacePrefix::never; }

 private:
  std::string normalize(std::string_view text, bool prefixed) const {
    std::string normal(prefixed ? kMetaspace : std::string_view());
    bool after_space = true;  // also at the beginning
    for (const char c : text) {
      if (c != ' ') {
        normal += c;
      } else if (!collapse_spaces_ || !after_space) {
        normal += kMetaspace;
      }
      after_space = c == ' ';
    }
    if (collapse_spaces_) {
      while (normal.size() >= kMetaspace.size() && std::string_view(normal).ends_with(kMetaspace)) {
        normal.resize(normal.size() - kMetaspace.size());
      }
    }
    return normal;
  }

  // Splits into characters and user-defined pieces; the longest such piece has priority.
  std::vector<BpeSymbol> split(std::string_view text) const {
    std::vector<BpeSymbol> symbols;
    for (size_t at = 0; at < text.size();) {
      BpeSymbol symbol;
      symbol.begin = static_cast<uint32_t>(at);
      size_t size = 0;
      user_defined_.match(text, at, [&](uint32_t, size_t end) { size = end - at; });
      symbol.frozen = size > 0;
      symbol.size = static_cast<uint32_t>(size > 0 ? size : next_utf8(text.substr(at)).size);
      at += symbol.size;
      symbols.push_back(symbol);
    }
    link_symbols(symbols);
    return symbols;
  }

  void put(std::string_view text, const std::unordered_map<int32_t, uint32_t>& seams,
           bool& after_unknown, std::vector<int32_t>& ids) const {
    std::vector<std::string_view> parts = {text};
    while (!parts.empty()) {
      const std::string_view part = parts.back();
      parts.pop_back();
      const auto found = entries_.find(part);
      if (found == entries_.end()) {
        put_unknown(part, after_unknown, ids);
        continue;
      }
      const auto seam = found->second.unused ? seams.find(found->second.id) : seams.end();
      if (seam != seams.end()) {
        parts.push_back(part.substr(seam->second));
        parts.push_back(part.substr(0, seam->second));
        continue;
      }
      ids.push_back(found->second.id);
      after_unknown = false;
    }
  }

  void put_unknown(std::string_view text, bool& after_unknown, std::vector<int32_t>& ids) const {
    if (byte_fallback_) {
      for (const char c : text) ids.push_back(bytes_[static_cast<unsigned char>(c)]);
      return;
    }
    if (!after_unknown) ids.push_back(unknown_);  // adjacent ones are one unknown token
    after_unknown = true;
  }

  const std::vector<Piece> pieces_;
  const bool byte_fallback_;
  const bool collapse_spaces_;
  const SpacePrefix prefix_;
  std::unordered_map<std::string_view, Entry> entries_;
  PrefixTrie user_defined_;
  std::array<int32_t, 256> bytes_{};
  int32_t unknown_ = 0;
};

}  // namespace

std::unique_ptr<PlainEncoder> make_sentencepiece_encoder(const SentencePieceModel& model,
                                                         SpacePrefix prefix) {
  return std::make_unique<SentencePieceEncoder>(model, prefix);
}

}  // namespace tessera
