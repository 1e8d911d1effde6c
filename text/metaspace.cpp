#include "text/metaspace.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/utf8.h"

namespace tessera {
namespace {

class MetaspaceEncoder final : public PlainEncoder {
 public:
  MetaspaceEncoder(BpeVocabulary vocabulary, MetaspaceSettings settings,
                   const std::array<int32_t, 256>& bytes)
      : vocabulary_(std::move(vocabulary)), settings_(settings), bytes_(bytes) {}

  void encode(std::string_view text, bool begins_text, std::vector<int32_t>& ids) const override {
    const std::string normal = normalize(text, begins_text);
    const std::string_view whole = normal;
    std::vector<BpeSymbol> symbols;
    for (size_t at = 0; at < whole.size();) {
      const size_t end = settings_.splits_words
                             ? std::min(whole.find(kMetaspace, at + 1), whole.size())
                             : whole.size();
      encode_word(whole.substr(at, end - at), symbols, ids);
      at = end;
    }
  }

  bool adds_leading_space() const override { return settings_.prefix != SpacePrefix::never; }

 private:
  std::string normalize(std::string_view text, bool begins_text) const {
    const bool place = settings_.prefix == SpacePrefix::always ||
                       (settings_.prefix == SpacePrefix::first && begins_text);
    const bool has_space = text.front() == ' ' || text.starts_with(kMetaspace);
    std::string normal;
    if (place && !(settings_.prefix_unless_space && has_space)) normal = kMetaspace;
    if (!settings_.marks_spaces) return normal.append(text);
    for (const char c : text) {
      if (c == ' ') {
        normal += kMetaspace;
      } else {
        normal += c;
      }
    }
    return normal;
  }

  void encode_word(std::string_view word, std::vector<BpeSymbol>& symbols,
                   std::vector<int32_t>& ids) const {
    if (vocabulary_.ignore_merges) {
      if (const auto id = vocabulary_.find(word)) {
        ids.push_back(*id);
        return;
      }
    }
    symbols.clear();
    for (size_t at = 0; at < word.size();) {
      const size_t size = next_utf8(word.substr(at)).size;
      put_character(word, at, size, symbols);
      at += size;
    }
    link_symbols(symbols);
    vocabulary_.encode_symbols(symbols, ids);
  }

  void put_character(std::string_view word, size_t at, size_t size,
                     std::vector<BpeSymbol>& symbols) const {
    BpeSymbol symbol;
    symbol.begin = static_cast<uint32_t>(at);
    symbol.size = static_cast<uint32_t>(size);
    symbol.id = vocabulary_.find(word.substr(at, size)).value_or(-1);
    const std::string_view character = word.substr(at, size);
    const bool spelled = symbol.id < 0 && vocabulary_.byte_fallback &&
                         std::all_of(character.begin(), character.end(), [this](char c) {
                           return bytes_[static_cast<unsigned char>(c)] >= 0;
                         });
    if (!spelled) {
      symbols.push_back(symbol);
      return;
    }
    for (size_t i = 0; i < size; ++i) {
      symbol.begin = static_cast<uint32_t>(at + i);
      symbol.size = 1;
      symbol.id = bytes_[static_cast<unsigned char>(character[i])];
      symbols.push_back(symbol);
    }
  }

  const BpeVocabulary vocabulary_;
  const MetaspaceSettings settings_;
  const std::array<int32_t, 256> bytes_;
};

}  // namespace

std::unique_ptr<PlainEncoder> make_metaspace_encoder(BpeVocabulary vocabulary,
                                                     MetaspaceSettings settings,
                                                     const std::array<int32_t, 256>& bytes) {
  return std::make_unique<MetaspaceEncoder>(std::move(vocabulary), settings, bytes);
}

}  // namespace tessera
