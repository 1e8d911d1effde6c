#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/kv/kv_budget.h"
#include "kernels/backend.h"
#include "kernels/kv_arena.h"

namespace tessera {

struct KvCacheOptions {
  KvFormat format;
  int32_t page_tokens = 0;  // least tokens a page holds
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t slots = 0;    // sequences that hold pages at one time
  int32_t context = 0;  // tokens of the longest sequence
  int64_t bytes = 0;    // of the arena; 0: room for `slots` whole contexts
};

// Room that a sequence needs: pages for its first `tokens` tokens in every head.
struct KvReservation {
  int32_t slot = 0;
  int32_t tokens = 0;
};

// The only thing that changes pages. Sequences are known by their slots, and pages only as totals:
// which page stands where is the backend's, behind kv_resize and kv_fork. Host totals are kept
// here, so that planning never waits for a device. One thread uses it.
class KvCache {
 public:
  // Errors: InvalidArgument, with the numbers, when `bytes` does not hold one whole context or is
  // more pages than there are page ids; ResourceExhausted when the system refuses the memory.
  static absl::StatusOr<std::unique_ptr<KvCache>> create(const KvCacheOptions& options,
                                                         const Backend& backend, Stream stream);

  // A slot that holds nothing yet. Requires: fewer than options.slots are open.
  int32_t open_slot();

  // Gives each slot the pages it lacks. Requires: open slots, each at most once; no fewer tokens
  // than before, no more than the context; enough free pages.
  void reserve(std::span<const KvReservation> reservations);

  // Lets each target begin with the first tokens of its source: pages that these fill are shared,
  // of the rest it gets a copy. Requires: open slots; targets that hold nothing and are no sources;
  // sources with room for that many tokens; the same number of shared pages in all forks of a
  // source and of what was forked from it; enough free pages.
  void fork(std::span<const KvRowFork> forks);

  // Takes back all pages of these slots, but those that slots still open share, and closes them.
  // Requires: open slots, each at most once.
  void release(std::span<const int32_t> slots);

  // Where ops find the pages.
  KvPagesView view() const { return arena_->view(); }

  KvBudget budget() const { return {free_, heads_, layout().capacity}; }
  // Shared ones included: the sum over slots may be more than there are.
  int64_t slot_pages(int32_t slot) const { return budget().pages_for(tokens_of(slot)); }
  int64_t pages_total() const { return arena_->shape().pages; }
  int64_t page_bytes() const { return layout().page_bytes; }
  int64_t token_capacity() const { return pages_total() / heads_ * layout().capacity; }

  // Aborts unless every page stands in one place and the tables hold what the totals say. Walks
  // everything: for tests.
  void check_integrity() const;

 private:
  KvCache(const KvCacheOptions& options, std::unique_ptr<KvArena> arena, const Backend& backend,
          Stream stream);
  const KvPageLayout& layout() const { return arena_->shape().layout; }
  struct Slot {
    bool open = false;
    int32_t tokens = 0;        // it has room for
    int32_t share = kNoShare;  // the pages it began with, if others do too
  };
  // The pages that slots which were forked from each other have in common.
  struct Share {
    int32_t owners = 0;     // slots; 0: not in use
    int32_t row_pages = 0;  // in each row
  };
  static constexpr int32_t kNoShare = -1;
  int32_t tokens_of(int32_t slot) const;
  void share(const KvRowFork& fork);
  int32_t unshare(int32_t slot);  // row pages that stay with others
  void resize();

  std::unique_ptr<KvArena> arena_;
  const Backend& backend_;
  Stream stream_;
  int32_t heads_;  // layers * kv_heads
  int64_t free_;   // pages
  std::vector<Slot> slots_;
  std::vector<Share> shares_;          // [slots]
  std::vector<int32_t> closed_slots_;  // to be opened next, the last first
  std::vector<KvRowResize> changes_;   // [slots] of one call
};

}  // namespace tessera
