#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace tessera {

// A byte range of the text that is one token or may become part of one.
struct BpeSymbol {
  uint32_t begin = 0;   // byte offset in the text
  uint32_t size = 0;    // bytes; 0: merged into the previous symbol
  int32_t id = -1;      // -1: this text alone is not in the vocabulary
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

// Byte pair encoding of linked symbols, O(n log n). Merges the adjacent pair of lowest rank, the
// leftmost of equals, until no adjacent pair merges. `find(left, right)` returns the pair's
// std::optional<BpeMerge>. The remaining symbols have size > 0 and are linked by `next` from the
// first one.
// Requires: link_symbols() was called.
template <typename Find>
void merge_symbols(std::vector<BpeSymbol>& symbols, Find&& find) {
  struct Candidate {
    uint32_t rank;
    int32_t left;
    uint32_t size;  // sum of both; the candidate is stale once it differs
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
