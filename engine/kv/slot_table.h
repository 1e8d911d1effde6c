#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/kv/fork_families.h"
#include "engine/kv/kv_sections.h"
#include "engine/kv/kv_slot.h"
#include "kernels/kv/kv_page.h"
#include "kernels/kv/kv_policy.h"

namespace tessera {

// Host state of a slot. Page numbers are totals over its rows, all layers and KV heads together.
struct SlotState {
  bool open = false;
  bool compressed = false;   // KvCache::compress has run on this slot at least once
  bool handed_over = false;  // hand_over() gave it blocks since the last compression
  KvPolicy policy;           // with this rank's share of a budget in bytes
  KvTiers tiers;
  int32_t prompt_tokens = 0;
  int32_t tokens = 0;      // tokens attached, forked and reserved so far, also those of a replay
  KvSections sections;     // of a policy that replays; `replayed` is not set, see replayed()
  int32_t low_tokens = 0;  // first tokens, attached from demoted blocks; 0 for a lossy policy
  int32_t evaluated = 0;   // KvCompression::evaluated of the next call
  int32_t groups = 0;      // closed groups at the last compression
  int32_t passed = 0;      // position up to which layers with windows gave pages back (KvPassed)
  // Tightening (kv_tightening.h): smallest share of its budget, steps taken, and the share of
  // tokens that were stored at the first of them.
  float floor = 1;
  int32_t tightenings = 0;
  float stored_share = 1;
  int64_t high_pages = 0;  // on this rank, by tier
  int64_t low_pages = 0;

  // Only if compressed, as of the last RankTotals::synchronize: pages on the rank with the fewest
  // and on the rank with the most, and sums over all ranks.
  int64_t min_pages = 0;
  int64_t max_pages = 0;
  int64_t all_high_pages = 0;
  int64_t all_low_pages = 0;

  // Tokens of the current replay among `tokens`.
  int32_t replayed() const {
    return sections.compresses_next() && tokens > sections.next_end() ? tokens - sections.next_end()
                                                                      : 0;
  }
  int64_t pages() const { return high_pages + low_pages; }
  // Lower bound over ranks.
  int64_t pages_at_least() const { return compressed ? min_pages : pages(); }
  int64_t pages_of_all(int32_t ranks) const {
    return compressed ? all_high_pages + all_low_pages : ranks * pages();
  }
  // Lets an empty slot begin with the first tokens of `source`, as a fork of it. Pages of the high
  // tier and passed windows depend on the position, so the caller sets them.
  void begin_as(const SlotState& source, int32_t first_tokens);
  // Counts pages that every rank adds to the high tier. For a compressed slot this is an upper
  // bound, until the ranks synchronize.
  void grow(int64_t pages, int32_t ranks);
};

// The states of all slots, and the forks among open ones. Inside the cache a slot is a number;
// KvSlot is its owner outside.
class SlotTable {
 public:
  explicit SlotTable(int32_t slots);

  // Requires: a free slot.
  // Returns: its number.
  int32_t open(const SlotState& state);
  void close(int32_t slot);  // also removes it from its fork family
  bool all_free() const { return free_.size() == states_.size(); }

  // Requires: an open slot.
  const SlotState& at(int32_t slot) const;
  SlotState& at(int32_t slot);
  const SlotState& at(const KvSlot& slot) const { return at(slot.index()); }
  SlotState& at(const KvSlot& slot) { return at(slot.index()); }
  std::span<const SlotState> all() const { return states_; }  // [slots], free ones included

  ForkFamilies& families() { return families_; }
  const ForkFamilies& families() const { return families_; }

 private:
  std::vector<SlotState> states_;
  std::vector<int32_t> free_;  // the last one is opened next
  ForkFamilies families_;
};

}  // namespace tessera
