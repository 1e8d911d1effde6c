#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/kv/kv_usage.h"
#include "engine/kv/prefix_cache.h"
#include "engine/kv/rank_totals.h"
#include "engine/kv/slot_table.h"
#include "kernels/kv/kv_arena.h"

namespace tessera {

// Counts pages and bytes on the host, so that planning does not wait for the backend. KvCache
// reports each change; other classes only read.
//
// Pages are *free* if no slot and no prefix block holds them, and *available* if they are free or
// in unlocked prefix blocks. Totals of all ranks are marked by `all`.
class KvAccounting {
 public:
  // prefixes: null without a prefix cache. ranks: null with one rank. Arguments outlive this.
  KvAccounting(const KvArena& arena, SlotTable& slots, const PrefixCache* prefixes,
               Communicator* ranks);

  // On the rank with the fewest.
  int64_t free_pages() const { return free_pages_ - ranks_.surplus(); }
  int64_t available_pages() const {
    return free_pages() + (prefixes_ == nullptr ? 0 : prefixes_->unlocked_pages());
  }
  int64_t all_available_pages() const {
    return available_pages() * ranks_.ranks() + ranks_.all_surplus();
  }
  int64_t pages_total() const { return arena_.shape().pages; }  // free or not, on this rank
  // Pages in use by format, summed over all ranks, in the order of the arena's formats.
  std::span<const KvFormatPages> format_pages() const { return format_pages_; }
  const RankTotals& rank_totals() const { return ranks_; }

  // Pages of the slot on this rank, all layers and KV heads together. Shared pages are included, so
  // the sum over slots may exceed the number of pages.
  int64_t slot_pages(const KvSlot& slot) const { return slots_.at(slot).pages(); }
  // Bytes allocated for a slot on all ranks: its pages, its residual buffers, its page tables, its
  // token scores and query sums. Shared pages are counted whole.
  int64_t slot_bytes(const KvSlot& slot) const;
  KvUsage usage(const KvSlot& slot) const;  // collective if the slot is compressed

  // ---- changes, reported by the cache
  // Requires: so many pages are free on this rank.
  void take(int64_t pages);
  void give_back(int64_t pages) { free_pages_ += pages; }
  // Counts all pages of a slot as free that no other slot and no prefix block holds.
  void give_back_slot(int32_t slot) { free_pages_ += pages_alone(slot); }
  // See RankTotals::synchronize. Collective.
  void synchronize(std::span<const int32_t> compressed_slots) {
    ranks_.synchronize(free_pages_, slots_, compressed_slots);
  }
  void count_changes(std::span<const KvCompressed> changes) { ranks_.count_changes(changes); }
  void count_formats();  // after each call that changes pages

  void check_integrity() const;  // aborts unless the counts agree with the arena's tables

 private:
  int64_t cached_high_pages(int32_t slot) const;
  int64_t cached_low_pages(int32_t slot) const;
  int64_t cached_windowed_pages(int32_t slot) const;
  int64_t pages_alone(int32_t slot) const;

  const KvArena& arena_;
  SlotTable& slots_;
  const PrefixCache* const prefixes_;
  RankTotals ranks_;
  int64_t free_pages_;  // on this rank
  std::vector<KvFormatPages> format_pages_;
};

}  // namespace tessera
