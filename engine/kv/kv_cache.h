#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/kv/kv_budget.h"
#include "engine/kv/kv_preset.h"
#include "kernels/backend.h"
#include "kernels/kv_arena.h"

namespace tessera {

struct KvCacheOptions {
  KvPreset preset = kKvPresetF16;
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t slots = 0;    // sequences that hold pages at one time
  int32_t context = 0;  // tokens of the longest sequence
  int64_t bytes = 0;    // of everything the cache allocates; 0: room for `slots` whole contexts
};

// Room that a sequence needs: for its first `tokens` tokens in every head.
struct KvReservation {
  int32_t slot = 0;
  int32_t tokens = 0;
};

// A sequence that begins with the first `tokens` tokens of another.
struct KvCopy {
  int32_t source = 0;
  int32_t target = 0;
  int32_t tokens = 0;
};

// The only thing that changes pages. Sequences are known by their slots, and pages only as totals:
// which page stands where is the backend's, behind kv_resize and kv_fork. One thread uses it.
class KvCache {
 public:
  // Pages have the size that wastes least for the preset's formats. Errors: InvalidArgument, with
  // the numbers, for a format without kernels, or when `bytes` does not hold the windows and tables
  // of all slots and one whole context, or is more pages than there are page ids;
  // ResourceExhausted when the system refuses the memory.
  static absl::StatusOr<std::unique_ptr<KvCache>> create(const KvCacheOptions& options,
                                                         const Backend& backend, Stream stream);

  // A slot that holds nothing yet. Requires: fewer than options.slots are open.
  int32_t open_slot();

  // Gives each slot the pages that its groups lack, where some close. Requires: open slots, each at
  // most once, whose earlier reservations have been stored; no fewer tokens than before, no more
  // than the context; enough free pages.
  void reserve(std::span<const KvReservation> reservations);

  // Lets each target begin with tokens of its source: pages that these fill are shared, of the rest
  // it gets a copy. Requires: open slots; targets that hold nothing and are no sources; either as
  // many tokens as the source's closed groups and open group have at least, or whole groups of it;
  // enough free pages (budget().pages_for less full_pages for each).
  void fork(std::span<const KvCopy> copies);

  // Takes back all pages of these slots, but those that slots still open share, and closes them.
  // Requires: open slots, each at most once.
  void release(std::span<const int32_t> slots);

  // Where ops find the pages, and the formats of a slot's rows.
  KvPagesView view() const { return arena_->view(); }
  KvTiers tiers(int32_t slot) const;

  KvBudget budget() const { return {free_pages(), heads_, layout().capacity}; }
  int64_t free_pages() const { return arena_->free_pages(); }
  // Shared ones included: the sum over slots may be more than there are.
  int64_t slot_pages(int32_t slot) const { return open(slot).pages; }

  // Bytes as allocated for a sequence: its pages, shared ones counted whole, and its slot's window,
  // tables and marks.
  int64_t slot_bytes(int32_t slot) const;

  const KvArenaShape& shape() const { return arena_->shape(); }
  int64_t pages_total() const { return shape().pages; }
  int64_t token_capacity() const { return pages_total() / heads_ * layout().capacity; }

  // Aborts unless the owners are those that hold the pages and every slot holds what it was given.
  // Walks everything: for tests.
  void check_integrity() const;

 private:
  KvCache(std::unique_ptr<KvArena> arena, KvTiers tiers, const Backend& backend, Stream stream);
  KvPageLayout layout() const { return shape().layout(tiers_.high); }
  struct Slot {
    bool open = false;
    int32_t tokens = 0;  // it has room for
    int64_t pages = 0;   // its rows hold
  };
  const Slot& open(int32_t slot) const;
  Slot& open(int32_t slot) { return const_cast<Slot&>(std::as_const(*this).open(slot)); }

  std::unique_ptr<KvArena> arena_;
  const KvTiers tiers_;
  const Backend& backend_;
  const Stream stream_;
  const int32_t heads_;  // layers * kv_heads
  std::vector<Slot> slots_;
  std::vector<int32_t> closed_slots_;  // to be opened next, the last first
  std::vector<KvGrowth> grown_;        // [slots] of one call
  std::vector<KvFork> forks_;          // likewise
};

}  // namespace tessera
