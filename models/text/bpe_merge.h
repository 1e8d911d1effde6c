#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace tessera {

// A stretch of the text that is (or may become part of) one token.
struct BpeSymbol {
  uint32_t begin = 0;   // bytes of the text
  uint32_t size = 0;    // 0: merged into the one before
  int32_t id = -1;      // -1: not in the vocabulary as it stands
  bool frozen = false;  // never merged
  int32_t previous = -1;
  int32_t next = -1;

  std::string_view of(std::string_view text) const { return text.substr(begin, size); }
};

struct BpeMerge {
  uint32_t rank;  // the lowest is merged first
  int32_t id;     // of the merged symbol
};

// Links symbols that were appended in order.
inline void link_symbols(std::vector<BpeSymbol>& symbols) {
  const auto count = static_cast<int32_t>(symbols.size());
  for (int32_t i = 0; i < count; ++i) {
    BpeSymbol& symbol = symbols[static_cast<size_t>(i)];
    symbol.previous = i - 1;
    symbol.next = i + 1 < count ? i + 1 : -1;
  }
}

// Byte pair encoding of linked symbols, O(n log n): among all neighbours the pair of lowest rank is
// merged, of equals the leftmost, until no neighbours merge. `find(left, right)` gives their
// std::optional<BpeMerge>. What is left over has a size and is reached by `next` from the first.
template <typename Find>
void merge_symbols(std::vector<BpeSymbol>& symbols, Find&& find) {
  struct Candidate {
    uint32_t rank;
    int32_t left;
    uint32_t size;  // of both; a candidate is stale once either has grown or gone
    int32_t id;
  };
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
  };
  const auto at = [&symbols](int32_t i) -> BpeSymbol& { return symbols[static_cast<size_t>(i)]; };
  const auto candidate = [&](int32_t left) -> std::optional<Candidate> {
    if (left < 0 || at(left).next < 0) return std::nullopt;
    const BpeSymbol& a = at(left);
    const BpeSymbol& b = at(a.next);
    if (a.frozen || b.frozen) return std::nullopt;
    const std::optional<BpeMerge> merge = find(a, b);
    if (!merge) return std::nullopt;
    return Candidate{merge->rank, left, a.size + b.size, merge->id};
  };

  std::vector<Candidate> agenda;
  agenda.reserve(symbols.size());
  for (int32_t i = 0; i < static_cast<int32_t>(symbols.size()); ++i) {
    if (const auto found = candidate(i)) agenda.push_back(*found);
  }
  std::make_heap(agenda.begin(), agenda.end(), later);
  const auto push = [&](int32_t left) {
    if (const auto found = candidate(left)) {
      agenda.push_back(*found);
      std::push_heap(agenda.begin(), agenda.end(), later);
    }
  };

  while (!agenda.empty()) {
    std::pop_heap(agenda.begin(), agenda.end(), later);
    const Candidate best = agenda.back();
    agenda.pop_back();
    BpeSymbol& left = at(best.left);
    if (left.size == 0 || left.next < 0) continue;
    BpeSymbol& right = at(left.next);
    if (left.size + right.size != best.size) continue;
    left.size = best.size;
    left.id = best.id;
    right.size = 0;
    left.next = right.next;
    if (left.next >= 0) at(left.next).previous = best.left;
    push(left.previous);
    push(best.left);
  }
}

}  // namespace tessera
