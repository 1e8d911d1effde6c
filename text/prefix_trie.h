#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>

namespace tessera {

// Trie of strings with a number each. Finds all strings that match at a given position of a text.
class PrefixTrie {
 public:
  void insert(std::string_view text, uint32_t value) {
    uint32_t node = 0;
    for (const char byte : text) {
      const auto [edge, fresh] = edges_.try_emplace(key(node, byte), nodes_);
      if (fresh) ++nodes_;
      node = edge->second;
    }
    values_[node] = value;
  }

  // Calls `visit(value, end)` for each string that equals text[at, end), the shortest first.
  template <typename Visit>
  void match(std::string_view text, size_t at, Visit&& visit) const {
    uint32_t node = 0;
    for (size_t end = at; end < text.size();) {
      const auto edge = edges_.find(key(node, text[end]));
      if (edge == edges_.end()) return;
      node = edge->second;
      ++end;
      const auto value = values_.find(node);
      if (value != values_.end()) visit(value->second, end);
    }
  }

 private:
  static uint64_t key(uint32_t node, char byte) {
    return (uint64_t{node} << 8U) | static_cast<unsigned char>(byte);
  }

  std::unordered_map<uint64_t, uint32_t> edges_;
  std::unordered_map<uint32_t, uint32_t> values_;  // by the node at which a string ends
  uint32_t nodes_ = 1;
};

}  // namespace tessera
