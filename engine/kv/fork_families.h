#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tessera {

// Counts the first pages that slots share because one was forked from another. Page counts are
// totals over all heads, and each head has the same number.
//
// The slots of a family form a linked list. Two slots share the minimum of the counts that
// neighbours between them share. So the pages that a slot shares follow from its two neighbours.
class ForkFamilies {
 public:
  explicit ForkFamilies(int32_t slots) : members_(static_cast<size_t>(slots)) {}

  // The target begins with the first `pages` pages of the source.
  // Requires: the target is in no family.
  void fork(int32_t source, int32_t target, int64_t pages) {
    int32_t before = source;
    while (at(before).next != kNone && at(before).shared_with_next > pages) {
      before = at(before).next;
    }
    const int32_t after = at(before).next;
    at(target) = {before, after, after == kNone ? 0 : at(before).shared_with_next};
    at(before).next = target;
    at(before).shared_with_next = pages;
    if (after != kNone) {
      at(after).previous = target;
    }
  }

  // Removes the slot from its family, if it is in one, because its pages are released.
  void leave(int32_t slot) {
    const auto [previous, next, shared_with_next] = at(slot);
    if (previous != kNone) {
      at(previous).next = next;
      at(previous).shared_with_next =
          next == kNone ? 0 : std::min(at(previous).shared_with_next, shared_with_next);
    }
    if (next != kNone) {
      at(next).previous = previous;
    }
    at(slot) = {};
  }

  // Number of first pages that the slot shares with the previous slot, the next slot, any slot.
  int64_t shared_with_previous(int32_t slot) const {
    const int32_t previous = at(slot).previous;
    return previous == kNone ? 0 : at(previous).shared_with_next;
  }
  int64_t shared_with_next(int32_t slot) const { return at(slot).shared_with_next; }
  int64_t shared(int32_t slot) const {
    return std::max(shared_with_previous(slot), shared_with_next(slot));
  }

 private:
  static constexpr int32_t kNone = -1;
  struct Member {
    int32_t previous = kNone;
    int32_t next = kNone;
    int64_t shared_with_next = 0;
  };
  Member& at(int32_t slot) { return members_[static_cast<size_t>(slot)]; }
  const Member& at(int32_t slot) const { return members_[static_cast<size_t>(slot)]; }

  std::vector<Member> members_;
};

}  // namespace tessera
