#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/kv/fork_families.h"
#include "engine/kv/kv_budget.h"
#include "engine/kv/kv_shape.h"
#include "engine/kv/kv_slot.h"
#include "engine/kv/kv_usage.h"
#include "engine/kv/prefix_cache.h"
#include "kernels/backend.h"
#include "kernels/communicator.h"
#include "kernels/kv/kv_arena.h"
#include "kernels/kv/kv_page.h"
#include "kernels/kv/kv_policy.h"
#include "models/aligned_memory.h"

namespace tessera {

// A swapped-out slot in host memory: a copy of its keys and values, and KvCache's state of it.
class SwappedKv;

// Allocates, shares and frees all KV pages; the model's kv_store writes them. A running
// sequence owns a slot (KvSlot), which is open as long; other slots are free. The host counts
// pages; page tables belong to the backend's kv_ ops. Not thread-safe: the engine thread is the
// only caller.
//
// Life of a slot: open_slot(), then attach() or fork() if it begins with stored tokens; or
// swap_in(). In each step reserve(), the model's forward pass, insert(), compress(). At the end
// release(). A slot that is preempted and not recomputable() is swapped out before.
//
// Pages are *free* if no slot and no prefix block holds them, and *available* if they are free or
// in unlocked prefix blocks. Functions that take pages need available pages: they demote and evict
// prefix blocks until enough pages are free.
//
// With tensor parallelism each rank has a KvCache for its own KV heads, and all ranks make the same
// calls. Page totals of ranks differ only after a policy has compressed rows, because each rank
// compresses by its own scores. Planning uses the least favourable total of all ranks, so all ranks
// plan the same step. Reported totals are sums over ranks. Calls that compress, or that change the
// pages of a compressed slot, are collective, and so are usage() and swap_out() of such a slot.
class KvCache {
 public:
  // The page size is the one that wastes the least memory over the formats of all presets.
  // Errors:
  //   InvalidArgument, with the numbers: check() refuses a preset; f32 is combined with another
  //     format; the backend has no kernels for a format; `bytes` is less than the residual buffers
  //     and tables of all slots plus one whole context; `bytes` is more pages than there are page
  //     ids.
  //   ResourceExhausted: the system refuses the memory.
  static absl::StatusOr<std::unique_ptr<KvCache>> create(const KvCacheOptions& options,
                                                         const Backend& backend, Stream stream);

  // Requires: every slot is released.
  ~KvCache();

  // Returns: OK if sequences of this cache may use `policy`.
  // Errors: InvalidArgument names the wrong field, or the feature that this cache does not serve.
  absl::Status check(const KvPolicy& policy) const;

  // Opens an empty slot for a sequence with a prompt of `prompt_tokens` tokens.
  // Requires: a free slot; check(policy) is OK.
  KvSlot open_slot(const KvPolicy& policy, int32_t prompt_tokens);
  // The same with the default preset.
  // Requires: that preset is not lossy.
  KvSlot open_slot() { return open_slot(preset_.policy, 0); }

  // ---- shared prefixes. Without a prefix cache nothing matches and nothing is inserted.

  // Tokens of one prefix block; 0 without a prefix cache.
  int32_t prefix_block_tokens() const {
    return prefixes_ == nullptr ? 0 : prefixes_->prefix_block_tokens();
  }
  // Returns: the longest cached path of `prompt` with at most `max` tokens (see
  // KvPolicy::shareable). The last known token never matches, because its logits are needed.
  // `known` is an earlier result for the same sequence, or empty. If blocks were demoted, replaced
  // or evicted since, the search starts anew, else it goes on from there.
  KvMatch match(const KvPrompt& prompt, int32_t max, const KvMatch& known) const;
  int32_t tokens_of(const KvMatch& match) const { return match.blocks * prefix_block_tokens(); }
  // Returns: unlocked pages of the match. available_pages() counts them until attach() locks them.
  int64_t unlocked_pages(const KvMatch& match) const {
    return prefixes_ == nullptr ? 0 : prefixes_->unlocked_pages(match);
  }
  // Lets the slot begin with the matched blocks and locks them.
  // Requires: the slot is empty; no block was demoted, replaced, handed over or evicted since
  // match() returned `match`; no demoted blocks if the slot's policy is lossy.
  void attach(const KvSlot& slot, const KvMatch& match);
  // Inserts the whole prefix blocks of the slot's first `tokens` tokens into the prefix cache (op
  // kv_share). Does nothing if the slot is compressed. With `relabel`, unlocked cached blocks of a
  // coarser format or grade are replaced by the slot's, and earlier matches become invalid.
  // Requires: these tokens are stored.
  void insert(const KvSlot& slot, const KvPrompt& prompt, int32_t tokens, bool replace_coarser);
  // Records the paths of a prompt, given by the path hashes of its blocks (Sequence::path_hash).
  // A recurring prefix is worth inserting, even if the policy could compress it.
  // Returns: number of first tokens that an earlier recorded prompt had too.
  int32_t record(std::span<const uint64_t> paths);
  // Removes from the cache the longest tail of the slot's path that no other sequence, no pin and
  // no other cached block uses, and that is not demoted. The slot then owns these pages alone, so
  // its policy may compress them.
  // Returns: number of removed blocks.
  int32_t hand_over(const KvSlot& slot);
  // Evicts all blocks that no running sequence uses, pinned ones included.
  void flush();
  // See PrefixCache::pin. Pins always leave room for one whole context.
  bool pin(const KvSlot& slot, PrefixCache::Time until);
  void unpin(PrefixCache::Time now);
  const PrefixCache* prefixes() const { return prefixes_.get(); }  // null without a prefix cache

  // Allocates the pages for the groups that close when each slot reaches the reserved tokens.
  // Requires: each slot at most once; the tokens of earlier reservations are stored; not
  // fewer tokens than before and not more than the context; available pages: KvDemand::growth.
  void reserve(std::span<const KvReservation> reservations);

  // Compresses slots by their policies, i.e. demotes and drops tokens: slots whose prompt has just
  // become complete, slots in which a group has closed since the last call (with
  // compress_generated), and slots after a hand_over(). Other slots are skipped. Called once in
  // each step, after the reserved tokens are stored and scored. reserve() counts an upper bound of
  // pages for compressed rows; this call replaces it by the pages that kv_resize took.
  // Requires: each slot at most once; available pages: one for each page-table row of the
  // compressed slots, if the policy has a low tier (KvDemand::growth counts them).
  void compress(std::span<const KvSlot* const> slots);

  // Lets each target begin with tokens of its source. Full pages are shared; partly filled pages
  // and the residual buffer are copied.
  // Requires: slots of one policy, which is not lossy; empty targets that are not sources; for
  // each copy either whole groups of the source, or a number of tokens that ends in the source's
  // open group; available pages: KvDemand::pages_for minus KvDemand::full_pages for each copy.
  void fork(std::span<const KvCopy> copies);

  // Returns the slot's pages; the slot is then free. Blocks of the prefix cache are unlocked and
  // stay there.
  void release(KvSlot&& slot);
  // The same for several slots in one op. Empties the list.
  void release(std::vector<KvSlot>& slots);

  // Returns: true if compress() has not run on the slot. A preempted sequence is then recomputed
  // from its tokens; else it must be swapped out before release(). Recompute gives the same bits,
  // except for a prefix that was attached from demoted blocks: the next match may find it in
  // another format, or not at all.
  bool recomputable(const KvSlot& slot) const { return !state(slot).compressed; }
  // Returns: a copy of the slot in newly allocated host memory. The slot stays open; the caller
  // releases it. Allocation is acceptable here: only preemption of a compressed slot comes here.
  // Requires: a compressed slot.
  SwappedKv swap_out(const KvSlot& slot) const;
  // Returns: a newly opened slot with the contents of `swapped`.
  // Requires: a free slot; swapped.pages() available pages.
  KvSlot swap_in(const SwappedKv& swapped);

  // Inputs of the model's ops: addresses of the pages, formats of a slot's tiers, and scoring of
  // its tokens. The view points into memory that this cache owns.
  KvPagesView view() const { return arena_->view(); }
  KvTiers tiers(const KvSlot& slot) const { return state(slot).tiers; }
  KvScoring scoring(const KvSlot& slot) const {
    return scoring_of(state(slot).policy, state(slot).prompt_tokens);
  }

  // ---- totals

  KvBudget budget() const { return {available_pages(), heads_, page_tokens(preset_.policy)}; }
  // Page demand for planning: of a slot, of a sequence without one, of a swapped-out one.
  KvDemand demand(const KvSlot& slot) const { return demand_of(state(slot)); }
  KvDemand demand(const KvPolicy& policy, int32_t prompt_tokens) const;
  KvDemand demand(const SwappedKv& swapped) const;

  // Free pages (held by no slot and no prefix block), on the rank with the fewest.
  int64_t free_pages() const { return free_pages_ - surplus_; }
  // The same and the unlocked pages of the prefix cache, which are evicted on demand.
  int64_t available_pages() const {
    return free_pages() + (prefixes_ == nullptr ? 0 : prefixes_->unlocked_pages());
  }
  // For planning. Returns: lower bound over ranks of the pages that releasing the slot frees, if a
  // sample that holds its first `forked` tokens stays. Pages of the prefix cache are not counted.
  int64_t own_pages(const KvSlot& slot, int32_t forked) const;
  // Sets pages[i] to the pages of the prefix cache that become unlocked when slots[i] is released
  // after slots[0, i). Releases nothing. Allocates no memory beyond that of earlier calls.
  void count_unlocked_pages(std::span<const KvSlot* const> slots, std::vector<int64_t>& pages);
  // Available pages, summed over all ranks.
  int64_t all_available_pages() const;
  // Pages of the slot on this rank, all layers and KV heads together. Shared pages are included, so
  // the sum over slots may exceed the number of pages.
  int64_t slot_pages(const KvSlot& slot) const { return state(slot).pages(); }

  KvUsage usage(const KvSlot& slot) const;
  // Bytes allocated for a slot on all ranks: its pages, its residual buffers, its page tables, its
  // token scores and query sums. Shared pages are counted whole.
  int64_t slot_bytes(const KvSlot& slot) const;
  // Pages in use by format, summed over all ranks, in the order of the arena's formats.
  std::span<const KvFormatPages> format_pages() const { return format_pages_; }
  // Totals since the start: a token counts once for each layer and KV head, on all ranks.
  int64_t demotions() const { return demotions_; }
  int64_t dropped_tokens() const { return dropped_; }

  const KvPreset& preset() const { return preset_; }
  const KvArenaShape& shape() const { return arena_->shape(); }
  int32_t ranks() const { return ranks_ == nullptr ? 1 : ranks_->ranks(); }
  int64_t pages_total() const { return shape().pages; }  // free or not, on this rank
  // Tokens in the default preset's high tier that fit into all pages.
  int64_t token_capacity() const { return pages_total() / heads_ * budget().page_tokens; }

  // Aborts unless page owners, free pages and slot totals are consistent. Walks all pages: for
  // tests.
  void check_integrity() const;

 private:
  friend class SwappedKv;
  struct Slot {
    bool open = false;
    bool compressed = false;   // compress() has run on this slot at least once
    bool handed_over = false;  // hand_over() gave it blocks since the last compress()
    KvPolicy policy;
    KvTiers tiers;
    int32_t prompt_tokens = 0;
    int32_t tokens = 0;      // tokens attached, forked and reserved so far
    int32_t low_tokens = 0;  // first tokens, attached from demoted blocks; 0 for a lossy policy
    int32_t evaluated = 0;   // KvCompression::evaluated of the next call
    int32_t groups = 0;      // closed groups at the last compression
    int64_t high_pages = 0;  // pages of the slot's rows, by tier
    int64_t low_pages = 0;

    int64_t pages() const { return high_pages + low_pages; }

    // Only if compressed, as of the last synchronize_totals(): pages on the rank with the fewest
    // and on the rank with the most, and sums over all ranks.
    int64_t min_pages = 0;
    int64_t max_pages = 0;
    int64_t all_high_pages = 0;
    int64_t all_low_pages = 0;
  };

  struct Memory {
    std::unique_ptr<KvArena> arena;
    AlignedMemory scratch;  // for kv_compress and kv_demote
  };
  KvCache(const KvCacheOptions& options, Memory memory, const Backend& backend, Stream stream);
  int32_t index_of(const KvSlot& slot) const;
  const Slot& state(const KvSlot& slot) const { return open(index_of(slot)); }
  const Slot& open(int32_t slot) const;
  Slot& open(int32_t slot) { return const_cast<Slot&>(std::as_const(*this).open(slot)); }
  KvSlot take_slot(Slot state);
  void close(std::span<const int32_t> slots);
  KvDemand demand_of(const Slot& slot) const;
  KvTiers tiers_of(const KvPolicy& policy) const;
  int32_t page_tokens(const KvPolicy& policy) const;
  int64_t cached_high_pages(int32_t slot) const;
  int64_t cached_low_pages(int32_t slot) const;
  // Pages that become free on this rank if the slot is released now, given the slots and prefix
  // blocks that share pages with it.
  int64_t pages_alone(int32_t slot) const;
  bool wants_compression(const Slot& slot) const;
  // Replaces the upper bounds for compressed slots by the pages that kv_resize took.
  void reconcile_growth();
  void count_format_pages();
  // ---- tensor parallelism (engine/kv/kv_ranks.cpp)
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
  Communicator* const ranks_;  // not owned; null: one rank
  const int32_t heads_;        // layers * kv_heads on this rank: page-table rows of a slot
  std::unique_ptr<PrefixCache> prefixes_;
  std::vector<Slot> slots_;
  std::vector<int32_t> free_slots_;  // free slots; the last one is opened next
  std::vector<int32_t> released_;    // [slots] of one release()
  int64_t free_pages_;  // counted on the host, so that planning does not wait for the backend
  ForkFamilies families_;
  std::vector<KvGrowth> grown_;   // [slots] of one reserve()
  std::vector<int64_t> planned_;  // upper bound of the pages that each of `grown_` takes
  std::vector<int32_t> taken_;    // pages that it took; kUnknown until kv_resize has written them
  std::vector<KvFork> forks_;     // [slots] of one call
  std::vector<KvCompression> compressions_;  // [slots] of one call
  std::vector<KvCompressed> compressed_;     // [slots]
  std::vector<KvFormatPages> format_pages_;
  int64_t demotions_ = 0;
  int64_t dropped_ = 0;
  std::vector<int32_t> uneven_slots_;    // arguments of synchronize_totals()
  std::vector<int64_t> own_totals_;      // of one all_gather
  std::vector<int64_t> all_totals_;      // [ranks, own_totals_]
  mutable std::vector<KvRow> all_rows_;  // of one usage()
  // Free pages of this rank beyond those of the rank with the fewest, and the sum of these surplus
  // pages over all ranks. They change only with the pages of compressed slots.
  int64_t surplus_ = 0;
  int64_t all_surplus_ = 0;
};

class SwappedKv {
 public:
  // Pages that swap_in() takes, on the rank that needs the most. Pages that the slot shared are
  // counted: it gets copies of its own.
  int64_t pages() const { return slot_.max_pages; }
  const KvUsage& usage() const { return usage_; }  // at the swap-out

 private:
  friend class KvCache;
  KvCache::Slot slot_;
  KvUsage usage_;
  std::vector<std::byte> bytes_;
};

}  // namespace tessera
