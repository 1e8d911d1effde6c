#include "text/ranked_encoder.h"

#include <optional>
#include <utility>
#include <vector>

namespace tessera {
namespace {

class RankedEncoder final : public PlainEncoder {
 public:
  RankedEncoder(RankedVocabulary vocabulary, SplitPattern pattern)
      : vocabulary_(std::move(vocabulary)), pattern_(std::move(pattern)) {}

  void encode(std::string_view text, bool, std::vector<int32_t>& ids) const override {
    std::vector<std::string_view> words;
    pattern_.split(text, words);
    std::vector<BpeSymbol> symbols;
    for (const std::string_view word : words) encode_word(word, symbols, ids);
  }

  bool adds_leading_space() const override { return false; }

 private:
  std::optional<BpeMerge> find(std::string_view bytes) const {
    const auto found = vocabulary_.ranks.find(bytes);
    if (found == vocabulary_.ranks.end()) return std::nullopt;
    return BpeMerge{found->second, vocabulary_.first_id + static_cast<int32_t>(found->second)};
  }

  void encode_word(std::string_view word, std::vector<BpeSymbol>& symbols,
                   std::vector<int32_t>& ids) const {
    if (const auto whole = find(word)) {
      ids.push_back(whole->id);
      return;
    }
    symbols.assign(word.size(), {});
    for (size_t i = 0; i < word.size(); ++i) {
      symbols[i].begin = static_cast<uint32_t>(i);
      symbols[i].size = 1;
      symbols[i].id = find(word.substr(i, 1))->id;
    }
    link_symbols(symbols);
    merge_symbols(symbols, [&](const BpeSymbol& left, const BpeSymbol& right) {
      return find(word.substr(left.begin, left.size + right.size));
    });
    for (const BpeSymbol& symbol : symbols) {
      if (symbol.size > 0) ids.push_back(symbol.id);
    }
  }

  const RankedVocabulary vocabulary_;
  const SplitPattern pattern_;
};

}  // namespace

std::unique_ptr<PlainEncoder> make_ranked_encoder(RankedVocabulary vocabulary,
                                                  SplitPattern pattern) {
  return std::make_unique<RankedEncoder>(std::move(vocabulary), std::move(pattern));
}

}  // namespace tessera
