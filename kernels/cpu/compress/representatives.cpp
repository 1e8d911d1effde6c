#include "kernels/cpu/compress/representatives.h"

#include <array>
#include <utility>

#include "kernels/cpu/compress/rule_row.h"
#include "kernels/kv/representatives.h"

namespace tessera {
namespace {

// One row, for Representatives.
class WindowRow : public RuleRow {
 public:
  WindowRow(const RuleInput& input, KvTokenScore* token_scores, std::span<uint8_t> distances)
      : RuleRow(input), input_(input), token_scores_(token_scores), distances_(distances) {}

  const TokenRow& tokens() const { return input_.row; }
  TokenKey key(int32_t place) const { return input_.significance.key(token_scores_[place]); }
  KvTokenScore* scores(int32_t place) const { return token_scores_ + place; }
  uint8_t& distance(int32_t window) const { return distances_[static_cast<size_t>(window)]; }
  template <class Visit>
  void each_window(int32_t first, int32_t end, Visit&& visit) const {
    for (int32_t window = first; window < end; ++window) {
      visit(window);
    }
  }
  template <class Visit>
  void each_ranked(int32_t first, int32_t end, Visit&& visit) const {
    std::array<int32_t, Representatives::kNoCandidate> next = {};  // ranks, of each distance
    each_window(first, end, [&](int32_t window) {
      if (distance(window) != Representatives::kNoCandidate) {
        ++next[distance(window)];
      }
    });
    int32_t before = 0;
    for (int32_t& rank : next) {
      before += std::exchange(rank, before);
    }
    each_window(first, end, [&](int32_t window) {
      if (distance(window) != Representatives::kNoCandidate) {
        visit(window, next[distance(window)]++);
      }
    });
  }
  template <class Select>
  int32_t windows(int32_t first, int32_t end, Select&& select) const {
    int32_t count = 0;
    each_window(first, end, [&](int32_t window) { count += select(window) ? 1 : 0; });
    return count;
  }

 private:
  const RuleInput& input_;
  KvTokenScore* const token_scores_;
  const std::span<uint8_t> distances_;
};

}  // namespace

void raise_representatives(const RuleInput& input, KvTokenScore* token_scores,
                           std::span<uint8_t> distances) {
  Representatives::raise(WindowRow(input, token_scores, distances));
}

}  // namespace tessera
