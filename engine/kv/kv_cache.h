#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/kv/fork_families.h"
#include "engine/kv/kv_budget.h"
#include "engine/kv/kv_shape.h"
#include "engine/kv/kv_usage.h"
#include "engine/kv/prefix_cache.h"
#include "kernels/backend.h"
#include "kernels/kv_arena.h"
#include "kernels/kv_policy.h"
#include "models/aligned_memory.h"

namespace tessera {

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

// A slot that gave its pages up, to be restored as it was.
class SwappedKv;

// The only thing that changes pages. Sequences are known by their slots, and pages only as totals:
// which page stands where is the backend's, behind its kv_ ops. One thread uses it.
//
// Of ranks, each has a cache for its own KV heads, and all of them do the same. Totals differ where
// policies have compressed rows, each by its own scores: planning goes by the rank that has least,
// so that all plan the same, and what is reported is the sum. What changes a compressed slot's
// pages is collective then, and usage() of a lossy policy.
class KvCache {
 public:
  // Pages have the size that wastes least for the formats of all presets. Errors: InvalidArgument,
  // with the numbers, for a preset that check() refuses, for f32 beside another format, or when
  // `bytes` does not hold the windows and tables of all slots and one whole context, or is more
  // pages than there are page ids; ResourceExhausted when the system refuses the memory.
  static absl::StatusOr<std::unique_ptr<KvCache>> create(const KvCacheOptions& options,
                                                         const Backend& backend, Stream stream);

  // Whether sequences may have this policy here. InvalidArgument says which field is wrong, or what
  // this cache does not serve.
  absl::Status check(const KvPolicy& policy) const;

  // A slot that holds nothing yet. Requires: fewer than options.slots are open; check(policy) is
  // OK.
  int32_t open_slot(const KvPolicy& policy, int32_t prompt_tokens);
  // Of the default preset, which must not be lossy.
  int32_t open_slot() { return open_slot(preset_.policy, 0); }

  // ---- what sequences have in common. Without a prefix cache nothing matches and nothing enters.

  int32_t prefix_block_tokens() const {
    return prefixes_ == nullptr ? 0 : prefixes_->prefix_block_tokens();
  }
  // How a sequence may begin: at most with `most` tokens (see KvPolicy::shareable), and with all
  // but its last. known: what it said before.
  KvMatch match(const KvPrompt& prompt, int32_t max, const KvMatch& known) const;
  int32_t tokens_of(const KvMatch& match) const { return match.blocks * prefix_block_tokens(); }
  // Pages that available_pages() counts no longer once it is attached.
  int64_t unlocked_pages(const KvMatch& match) const {
    return prefixes_ == nullptr ? 0 : prefixes_->unlocked_pages(match);
  }
  // A slot that has just been opened begins with it. Requires: nothing has been evicted or demoted
  // since match() returned it.
  void attach(int32_t slot, const KvMatch& match);
  // Others may begin with the slot's first `tokens` tokens, which are stored. relabel: see
  // PrefixCache::enter. What a policy has compressed does not enter.
  void insert(int32_t slot, const KvPrompt& prompt, int32_t tokens, bool relabel);
  // Of a prompt by the hashes of its units' paths (Sequence::path_hash): how many of its first
  // tokens were asked for before. What recurs is worth sharing, though a policy could compress it.
  int32_t record(std::span<const uint64_t> paths);
  // Makes what only this slot uses of the cache its own, so that its policy may compress it.
  int32_t hand_over(int32_t slot);
  // The cache lets go of all that running sequences do not use.
  void flush();
  // See PrefixCache; a context always finds room beside what is pinned.
  bool pin(int32_t slot, PrefixCache::Time until);
  void unpin(PrefixCache::Time now);
  const PrefixCache* prefixes() const { return prefixes_.get(); }  // null: there is no prefix cache

  // Gives each slot the pages that its groups lack, where some close. Requires: open slots, each at
  // most once, whose earlier reservations have been stored; no fewer tokens than before, no more
  // than the context; enough available pages, as for all that follow.
  void reserve(std::span<const KvReservation> reservations);

  // Once the reserved tokens are stored and scored: compresses those of `slots` whose prompt has
  // just become complete or in which a group has closed since, by their policies. Called once in
  // each step: what reserve() took for rows that a policy has compressed before, of which planning
  // knows but a bound, is known from here on. Requires: open slots, each at most once; what
  // demand() said is free.
  void compress(std::span<const int32_t> slots);

  // Lets each target begin with tokens of its source: pages that these fill are shared, of the rest
  // it gets a copy. Requires: open slots of one policy that compresses nothing; targets that hold
  // nothing and are no sources; either as many tokens as the source's closed groups and open group
  // have at least, or whole groups of it; enough free pages (KvDemand::pages_for less full_pages
  // for each).
  void fork(std::span<const KvCopy> copies);

  // Takes back the pages of these slots and closes them. Requires: open slots, each at most once.
  void release(std::span<const int32_t> slots);

  // Whether what the slot holds can be computed anew, bit for bit, from its tokens: nothing has
  // been compressed yet. What cannot is saved before it is released.
  bool recomputable(int32_t slot) const { return !open(slot).compressed; }
  // Copies to memory allocated for it: preemption under pressure is no ordinary step.
  SwappedKv swap_out(int32_t slot) const;
  // Requires: a closed slot; saved.pages() free pages.
  int32_t swap_in(const SwappedKv& swapped);

  // Where ops find the pages, the formats of a slot's rows, and how its tokens are scored.
  KvPagesView view() const { return arena_->view(); }
  KvTiers tiers(int32_t slot) const { return open(slot).tiers; }
  KvScoring scoring(int32_t slot) const {
    return scoring_of(open(slot).policy, open(slot).prompt_tokens);
  }

  KvBudget budget() const { return {available_pages(), heads_, page_tokens(preset_.policy)}; }
  // For planning: of a slot, of a sequence without one, of one that was saved.
  KvDemand demand(int32_t slot) const;
  KvDemand demand(const KvPolicy& policy, int32_t prompt_tokens) const;
  KvDemand demand(const SwappedKv& swapped) const;

  int64_t free_pages() const { return free_pages_ - surplus_; }
  // Those too that the prefix cache gives up where others need them.
  int64_t available_pages() const {
    return free_pages() + (prefixes_ == nullptr ? 0 : prefixes_->unlocked_pages());
  }
  // Of a slot's pages those that become free once it alone is released, its first `forked` tokens
  // being another slot's too.
  int64_t own_pages(int32_t slot, int32_t forked) const;
  // Of `slots`, released in this order, the pages that each leaves in the prefix cache and nobody
  // uses then. Allocates nothing that it has not allocated before.
  void count_returned_pages(std::span<const int32_t> slots, std::vector<int64_t>& pages);
  // What is free and available on all ranks together.
  int64_t all_available_pages() const;
  // Shared ones included: the sum over slots may be more than there are.
  int64_t slot_pages(int32_t slot) const { return open(slot).pages(); }

  KvUsage usage(int32_t slot) const;
  // Bytes as allocated for a sequence, on all ranks: its pages, shared ones counted whole, and its
  // slot's window, tables and marks.
  int64_t slot_bytes(int32_t slot) const;
  // Pages in use by format on all ranks, the formats in the order of the arena's list.
  std::span<const KvFormatPages> format_pages() const { return format_pages_; }
  // Tokens of one KV head, so far, of all ranks.
  int64_t demotions() const { return demotions_; }
  int64_t dropped_tokens() const { return dropped_; }

  const KvPreset& preset() const { return preset_; }
  const KvArenaShape& shape() const { return arena_->shape(); }
  int32_t ranks() const { return ranks_ == nullptr ? 1 : ranks_->ranks(); }
  int64_t pages_total() const { return shape().pages; }  // of this rank
  int64_t token_capacity() const { return pages_total() / heads_ * budget().page_tokens; }

  // Aborts unless the owners are those that hold the pages and every slot holds what it was given.
  // Walks everything: for tests.
  void check_integrity() const;

 private:
  friend class SwappedKv;
  struct Slot {
    bool open = false;
    bool compressed = false;   // its prompt, at least
    bool handed_over = false;  // since then: what it shared is its own, and to be judged
    KvPolicy policy;
    KvTiers tiers;
    int32_t prompt_tokens = 0;
    int32_t tokens = 0;      // it has room for
    int32_t low_tokens = 0;  // that it began with, in the low tier
    int32_t evaluated = 0;   // positions before it are known to the rule
    int32_t groups = 0;      // that were closed when it was last compressed
    int64_t high_pages = 0;  // its rows hold
    int64_t low_pages = 0;

    int64_t pages() const { return high_pages + low_pages; }

    // Of one that is compressed, as of the last agree(): the pages of the ranks that have fewest
    // and most, and those of all ranks.
    int64_t min_pages = 0;
    int64_t max_pages = 0;
    int64_t all_high_pages = 0;
    int64_t all_low_pages = 0;
  };

  struct Memory {
    std::unique_ptr<KvArena> arena;
    AlignedMemory scratch;  // of kv_compress and kv_demote
  };
  KvCache(const KvCacheOptions& options, Memory memory, const Backend& backend, Stream stream);
  const Slot& open(int32_t slot) const;
  Slot& open(int32_t slot) { return const_cast<Slot&>(std::as_const(*this).open(slot)); }
  int32_t closed_slot();
  KvTiers tiers_of(const KvPolicy& policy) const;
  int32_t page_tokens(const KvPolicy& policy) const;
  int64_t cached_high_pages(int32_t slot) const;
  int64_t cached_low_pages(int32_t slot) const;
  int64_t pages_alone(int32_t slot) const;  // that become free when it is released
  bool wants_compression(const Slot& slot) const;
  // What the backend took for rows that are not all of one length, in place of its bound.
  void reconcile_growth();
  void count_format_pages();
  // ---- of ranks (engine/kv/kv_ranks.cpp)
  void synchronize_totals(std::span<const int32_t> slots);
  void count_growth(Slot& slot, int64_t pages);
  void count_changes(std::span<const KvCompressed> changes);
  int64_t min_pages(const Slot& slot) const {
    return slot.compressed ? slot.min_pages : slot.pages();
  }
  int64_t all_pages(const Slot& slot) const;
  void add_other_ranks(std::span<KvFormatPages> formats) const;
  KvPolicy share_of(const KvPolicy& policy) const;
  std::span<const KvRow> all_rows(int32_t slot) const;
  void make_room(int64_t pages);

  static constexpr int32_t kUnknown = -1;

  const KvPreset preset_;
  const int32_t query_heads_;
  const int32_t sliding_window_;
  std::unique_ptr<KvArena> arena_;
  const AlignedMemory scratch_;
  const Backend& backend_;
  const Stream stream_;
  Communicator* const ranks_;
  const int32_t heads_;  // layers * kv_heads
  std::unique_ptr<PrefixCache> prefixes_;
  std::vector<Slot> slots_;
  std::vector<int32_t> closed_slots_;  // to be opened next, the last first
  int64_t free_pages_;  // counted here, so that nobody waits for the backend to say it
  ForkFamilies families_;
  std::vector<KvGrowth> grown_;   // [slots] of one call
  std::vector<int64_t> planned_;  // pages of each, at most ...
  std::vector<int32_t> taken_;  // ... and those it took, which kv_resize says; kUnknown until then
  std::vector<KvFork> forks_;   // [slots] of one call
  std::vector<KvCompression> compressions_;  // [slots] of one call
  std::vector<KvCompressed> compressed_;     // [slots]
  std::vector<KvFormatPages> format_pages_;
  int64_t demotions_ = 0;
  int64_t dropped_ = 0;
  std::vector<int32_t> uneven_slots_;    // of one call: those to agree on
  std::vector<int64_t> own_totals_;      // of one agree()
  std::vector<int64_t> all_totals_;      // [ranks]
  mutable std::vector<KvRow> all_rows_;  // of one usage()
  // Free pages: here beyond those of the rank that has fewest, and of all ranks beyond as many on
  // each. They change where rows are compressed, and nowhere else.
  int64_t surplus_ = 0;
  int64_t all_surplus_ = 0;
};

class SwappedKv {
 public:
  int64_t pages() const { return slot_.max_pages; }  // that it takes on some rank
  const KvUsage& usage() const { return usage_; }

 private:
  friend class KvCache;
  KvCache::Slot slot_;
  KvUsage usage_;
  std::vector<std::byte> bytes_;
};

}  // namespace tessera
