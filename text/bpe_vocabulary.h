#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/bpe_merge.h"

namespace tessera {

// The BPE model of a tokenizer.json, without special tokens, so that no text merges into one.
struct BpeVocabulary {
  // Allows lookup by std::string_view without a copy.
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids;
  std::unordered_map<uint64_t, BpeMerge> merges;  // by merge_key of the ids of left and right
  std::optional<int32_t> unknown;
  bool byte_fallback = false;  // unknown characters are spelled "<0x..>"
  bool fuse_unknown = false;   // adjacent unknown characters are one token
  bool ignore_merges = false;  // a word that is a token needs no merges

  static uint64_t merge_key(int32_t left, int32_t right) {
    return (uint64_t{static_cast<uint32_t>(left)} << 32U) | static_cast<uint32_t>(right);
  }

  std::optional<int32_t> find(std::string_view text) const {
    const auto found = ids.find(text);
    if (found == ids.end()) return std::nullopt;
    return found->second;
  }

  // Merges linked symbols and appends the ids of the remaining ones. A symbol without id becomes
  // the unknown token, or nothing if there is none.
  void encode_symbols(std::vector<BpeSymbol>& symbols, std::vector<int32_t>& ids_out) const;
};

}  // namespace tessera
