#include "text/byte_level.h"

#include <array>
#include <cstdint>
#include <utility>

#include "base/utf8.h"

namespace tessera {
namespace {

constexpr char32_t kFirstOther = 0x100;
constexpr int kNoByte = -1;
// Bytes by the characters that write them.
using Alphabet = std::array<int16_t, kFirstOther + 256>;

// Printable Latin-1 bytes map to themselves, the others to U+0100 and following, in order.
Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.fill(kNoByte);
  char32_t next = kFirstOther;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    alphabet[printable ? byte : next++] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

class ByteLevelEncoder final : public PlainEncoder {
 public:
  ByteLevelEncoder(BpeVocabulary vocabulary, ByteLevelSettings settings)
      : vocabulary_(std::move(vocabulary)), settings_(std::move(settings)) {
    for (unsigned byte = 0; byte < 256; ++byte) {
      const char c = static_cast<char>(byte);
      bytes_[byte] = vocabulary_.find({&c, 1}).value_or(-1);
    }
  }

  void encode(std::string_view text, bool, std::vector<int32_t>& ids) const override {
    std::string prefixed;
    if (settings_.add_prefix_space && text.front() != ' ') {
      prefixed.push_back(' ');
      prefixed.append(text);
      text = prefixed;
    }
    std::vector<std::string_view> words = {text};
    for (const SplitPattern& pattern : settings_.patterns) {
      std::vector<std::string_view> parts;
      for (const std::string_view word : words) pattern.split(word, parts);
      words = std::move(parts);
    }
    std::vector<BpeSymbol> symbols;
    for (const std::string_view word : words) encode_word(word, symbols, ids);
  }

  bool adds_leading_space() const override { return settings_.add_prefix_space; }

 private:
  void encode_word(std::string_view word, std::vector<BpeSymbol>& symbols,
                   std::vector<int32_t>& ids) const {
    if (vocabulary_.ignore_merges) {
      if (const auto id = vocabulary_.find(word)) {
        ids.push_back(*id);
        return;
      }
    }
    symbols.resize(word.size());
    for (size_t i = 0; i < word.size(); ++i) {
      symbols[i] = {};
      symbols[i].begin = static_cast<uint32_t>(i);
      symbols[i].size = 1;
      symbols[i].id = bytes_[static_cast<unsigned char>(word[i])];
    }
    link_symbols(symbols);
    vocabulary_.encode_symbols(symbols, ids);
  }

  const BpeVocabulary vocabulary_;
  const ByteLevelSettings settings_;
  std::array<int32_t, 256> bytes_{};
};

}  // namespace

const char* const kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::optional<std::string> decode_byte_level(std::string_view text) {
  static const Alphabet kAlphabet = make_alphabet();
  std::string bytes;
  while (!text.empty()) {
    const Utf8Step step = next_utf8(text);
    const bool known = step.kind == Utf8Step::Kind::valid && step.character < kAlphabet.size() &&
                       kAlphabet[step.character] != kNoByte;
    if (!known) return std::nullopt;
    bytes += static_cast<char>(kAlphabet[step.character]);
    text.remove_prefix(step.size);
  }
  return bytes;
}

std::unique_ptr<PlainEncoder> make_byte_level_encoder(BpeVocabulary vocabulary,
                                                      ByteLevelSettings settings) {
  return std::make_unique<ByteLevelEncoder>(std::move(vocabulary), std::move(settings));
}

}  // namespace tessera
