#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/kv/kv_accounting.h"
#include "engine/kv/prefix_cache.h"
#include "engine/kv/slot_table.h"

namespace tessera {

struct PrefixTransfer;

// The prefix cache as sequences use it: attaches cached prefixes to slots, inserts those of slots,
// and accounts for the pages. Without a prefix cache nothing matches and nothing is inserted.
class SharedPrefixes {
 public:
  // cache: null without a prefix cache. Arguments outlive this.
  SharedPrefixes(PrefixCache* cache, const KvArenaShape& shape, SlotTable& slots,
                 KvAccounting& accounting);

  bool enabled() const { return cache_ != nullptr; }
  // Tokens of one prefix block; 0 without a prefix cache.
  int32_t block_tokens() const { return enabled() ? cache_->prefix_block_tokens() : 0; }
  PrefixCacheStats stats() const { return enabled() ? cache_->stats() : PrefixCacheStats{}; }
  void outline(PrefixOutline& out) const {  // allocates nothing; empty without a prefix cache
    out.blocks.clear();
    out.omitted = 0;
    if (enabled()) {
      cache_->outline(out);
    }
  }

  // ---- planning
  // Returns: the longest cached path of `prompt` with at most `max` tokens (see
  // shareable_tokens). The last known token never matches, because its logits are needed.
  // `known` is an earlier result for the same sequence, or empty. If blocks were demoted, replaced
  // or evicted since, the search starts anew, else it goes on from there.
  KvMatch match(const KvPrompt& prompt, int32_t max, const KvMatch& known) const;
  int32_t tokens_of(const KvMatch& match) const {
    return enabled() ? cache_->lookup().tokens_of(match) : 0;
  }
  // Its tokens in whole blocks.
  int32_t whole_tokens_of(const KvMatch& match) const { return match.blocks() * block_tokens(); }
  // See PrefixLookup.
  KvMatch whole_blocks_of(const KvMatch& match) const {
    return cache_->lookup().whole_blocks_of(match);
  }
  // Returns: the compressed sections with which a sequence of a uniform policy begins.
  KvSections sections_of(const KvMatch& match) const;
  // Returns: unlocked pages of the match. Available pages include them until attach() locks them.
  int64_t unlocked_pages(const KvMatch& match) const {
    return enabled() ? cache_->lookup().unlocked_pages(match) : 0;
  }
  // Sets pages[i] to the pages of the prefix cache that become unlocked when slots[i] is released
  // after slots[0, i). Releases nothing. Allocates no memory beyond that of earlier calls.
  void count_unlocked_pages(std::span<const KvSlot* const> slots, std::vector<int64_t>& pages);

  // ---- changes
  // Lets the slot begin with the matched blocks and locks them.
  // Requires: the slot is empty; no block was demoted, replaced, handed over or evicted since
  // match() returned `match`; no demoted blocks if the slot's policy is lossy. own_short_blocks()
  // is the next call for the slot.
  void attach(const KvSlot& slot, const KvMatch& match);
  // Gives the slot its own copies of attached short blocks. Takes as many pages as
  // KvMatch::short_ends has.
  void own_short_blocks(const KvSlot& slot);
  // Inserts the whole prefix blocks of the slot's first `tokens` tokens into the prefix cache (op
  // kv_share). Does nothing if the slot is compressed, or if its policy replays and no section has
  // just been compressed. With `replace_coarser`, unlocked cached
  // blocks of a coarser format or grade are replaced by the slot's, and earlier matches become
  // invalid.
  // Requires: these tokens are stored.
  void insert(const KvSlot& slot, const KvPrompt& prompt, int32_t tokens, bool replace_coarser);
  // Inserts the rest of the slot's first `tokens` tokens behind the whole blocks as short blocks.
  // Does nothing under a private policy, if the slot replays, or if the arena has no short blocks.
  // replace_coarser: as for insert().
  // Requires: these tokens are stored; the slot is released next.
  void insert_short_blocks(const KvSlot& slot, const KvPrompt& prompt, int32_t tokens,
                           bool replace_coarser);
  // Records the paths of a prompt, given by the hashes of its paths (SequencePrefix::path_hash). A
  // recurring prefix is worth inserting, even if the policy could compress it.
  // Returns: number of first tokens that an earlier recorded prompt had too.
  int32_t record(std::span<const uint64_t> paths);
  // Removes from the cache the longest tail of the slot's path that is not demoted, and that no
  // other sequence, pin or cached block uses. The slot then owns these pages alone, so
  // its policy may compress them.
  // Returns: number of removed blocks.
  int32_t hand_over(const KvSlot& slot);
  // See PrefixPins::pin. Pins always leave room for one whole context.
  bool pin(const KvMatch& path, const PrefixPins::Terms& terms);
  void renew(const KvMatch& path, int32_t owner, PrefixPins::Time now);
  void unpin(PrefixPins::Time now);
  // Returns: false if pins keep nothing that can be given back.
  bool yield_pins();

  // ---- hints: see PrefixHints
  void demote(const KvMatch& path);
  // Returns: true if more blocks are left to demote.
  bool demote_some(int32_t most);
  void give_up(const KvMatch& path, int32_t owner);
  void touch(const KvMatch& path);

  // Evicts all blocks that no running sequence uses, pinned ones included.
  void flush();
  // Demotes and evicts blocks until `pages` pages are free, or no unlocked block is left.
  void make_room(int64_t pages);

  // ---- stores below the cache: see StoredBlocks.
  BlockTiers::Shape stored_shape() const { return cache_->blocks().stored().shape(); }
  void store_in(BlockTiers& tiers) { cache_->blocks().stored().open(tiers); }
  bool save_some(int32_t most) { return enabled() && cache_->blocks().stored().save_some(most); }
  void save_all(BlockWriter::Time until) {
    if (enabled()) {
      cache_->save_all(until);
    }
  }
  std::optional<size_t> continued_in(const KvPrompt& prompt, int32_t tokens,
                                     const KvMatch& match) const {
    return cache_->blocks().stored().continued_in(prompt, tokens, whole_blocks_of(match));
  }
  void describe(const KvPrompt& prompt, int32_t tokens, const KvMatch& match,
                BlockReader::Job& job) const {
    cache_->blocks().stored().describe(prompt, tokens, whole_blocks_of(match), job);
  }
  // A path that grows by stored blocks. It is locked, so its blocks are not evicted for each other.
  class Restored {
   public:
    // Requires: a match of whole blocks that is up to date; the prefixes outlive this.
    Restored(SharedPrefixes& prefixes, const KvMatch& match);
    ~Restored();
    Restored(const Restored&) = delete;
    Restored& operator=(const Restored&) = delete;
    // Adds the next block. Takes pages from unused blocks if it must.
    // Returns: false, and adds nothing, if the pages do not suffice, or if it is no block of this
    // cache.
    bool add(const KvPrompt& prompt, const BlockBuffer& stored);

   private:
    SharedPrefixes& prefixes_;
    PrefixTree::Node node_;
  };

  // ---- blocks as bytes. What happens is in `transfer`.
  // Requires: a prefix cache; the match is up to date.
  void write_out(const KvPrompt& prompt, const KvMatch& path, PrefixTransfer& transfer);
  // Takes pages from unused blocks if it must.
  void read_in(const KvPrompt& prompt, const KvMatch& path, PrefixTransfer& transfer);

  // ---- section step: see PrefixLookup and SlotPaths. The slot is one of KvCache::open_replay.
  KvMatch due_block() const { return enabled() ? cache_->lookup().due_block() : KvMatch{}; }
  void attach_due(const KvSlot& slot, const KvMatch& due);
  std::span<const int32_t> last_tokens(const KvSlot& slot) const {
    return cache_->paths().last_tokens(slot.index());
  }
  bool last_is_used(const KvSlot& slot) const { return cache_->paths().last_is_used(slot.index()); }

 private:
  // Errors: FailedPrecondition if the blocks of a transfer have other bits.
  absl::Status check_origin(const KvPrompt& prompt, const PrefixTransfer& transfer) const;

  PrefixCache* const cache_;
  const KvArenaShape& shape_;
  SlotTable& slots_;
  KvAccounting& accounting_;
};

}  // namespace tessera
