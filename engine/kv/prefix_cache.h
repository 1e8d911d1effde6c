#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "engine/kv/kv_usage.h"
#include "engine/kv/prefix_events.h"
#include "engine/kv/prefix_outline.h"
#include "engine/kv/prefix_tree.h"
#include "engine/kv/seen_paths.h"
#include "engine/kv/unsaved_blocks.h"
#include "engine/tier/block_tiers.h"
#include "kernels/backend.h"
#include "kernels/kv/kv_arena.h"

namespace tessera {

// A sequence's tokens for a lookup, and the formats that it accepts. All memory is the caller's.
struct KvPrompt {
  std::span<const int32_t> tokens;
  std::span<const uint64_t> hashes;  // PrefixTree::hash of each whole block, from the first
  std::string_view salt;             // blocks match under the same salt only
  KvFormat format;                   // in which the sequence stores
  KvFormat accept;                   // the coarsest that it reads
  // Pages that a row keeps of a section, as a mean over rows, if the policy replays; else 0. Such
  // blocks are compressed sections, and have paths of their own.
  int32_t section_pages = 0;
  // True: the sequence stores whole blocks and also reads compressed sections (section step).
  bool accepts_sections = false;
  // True: it may begin with short blocks behind the last whole one, as its own copies.
  bool copies_short_blocks = false;
  // Tokens behind these are read in the sequence's own form only. Samples of a request fork the
  // first ones, which takes whole rows behind them.
  int32_t max_coarse = std::numeric_limits<int32_t>::max();
};

// The longest cached path of a sequence's tokens.
struct KvMatch {
  PrefixTree::Node node = PrefixTree::kNone;  // the last block's node
  int32_t blocks = 0;                         // whole ones
  int32_t low_blocks = 0;  // blocks in the format `low`, which is not the sequence's own format
  KvFormat low;
  int32_t section_blocks = 0;   // compressed sections among whole blocks of the sequence's format
  uint8_t grade = 0;            // the coarsest grade of all blocks
  int64_t pages = 0;            // of all blocks, without windows that are not read
  int32_t windowed_blocks = 0;  // last whole ones, whose windows are read
  int64_t windows_pages = 0;    // of these
  int32_t short_blocks = 0;     // behind the whole ones
  int64_t short_pages = 0;      // of these; the sequence takes as many for its copies
  uint64_t version = 0;         // PrefixTree::version() + 1; 0: no lookup was made
};

struct PrefixCacheStats {
  int64_t blocks = 0;           // in the cache now
  int64_t pages = 0;            // of these blocks
  int64_t unlocked_pages = 0;   // not used by a running sequence, so they can be evicted
  int64_t pinned_blocks = 0;    // summed over all pins
  int64_t inserted_blocks = 0;  // this and the following: totals since the start
  int64_t demoted_blocks = 0;
  int64_t compressed_blocks = 0;  // to sections, by the section step
  int64_t evicted_blocks = 0;
  int64_t handed_over_blocks = 0;
};

// Prefixes that sequences share: the radix tree and the pages of its prefix blocks. Part of
// KvCache, which handles slots and policies. Here a slot is only the holder of a path.
//
// Blocks of hundreds of tokens leave a long rest behind the last whole one. Where the arena has
// short blocks, sequences leave this rest in the cache when they are released. A sequence that
// begins with short blocks gets its own copies of their pages. It will store the rest of the whole
// block behind them, and a section may then be compressed.
//
// When pages run out, the least recently used unlocked blocks are first demoted one step down the
// ladder. They are evicted when no step is left. Windows (PrefixTree) that no sequence reads are
// dropped before blocks that were used later. A path that has lost windows matches only as far as a
// continuation finds all windows that it reads. Sequences never write to the pages of a block.
// Functions that free pages return their number for KvAccounting. Not thread-safe.
class PrefixCache {
 public:
  // ladder: formats to which blocks may be demoted, as indices into the arena's formats. Empty:
  // blocks are evicted only. demote_scratch: memory for kv_demote, not owned; the caller may use it
  // between calls.
  // Requires: an arena with prefix blocks; all formats of `ladder` are among prefix_block_tiers;
  // arena, backend and scratch outlive this.
  PrefixCache(KvArena& arena, std::span<const uint8_t> ladder, const Backend& backend,
              Stream stream, std::span<std::byte> demote_scratch);

  // From now on `events` receives the blocks without a salt that are stored in this format: those
  // that a router can tell from a prompt. section_pages: see KvPrompt.
  // Requires: the cache is empty; `events` outlives this.
  void report(PrefixEvents& events, KvFormat format, int32_t section_pages = 0);

  // From now on whole blocks of this format may be compressed to sections (compress_block).
  // section_pages: see KvPrompt.
  // Requires: the arena has such section blocks.
  void add_section_step(KvFormat format, int32_t section_pages);

  // Host bytes for each block, besides its pages and page tables.
  static int64_t block_bytes(int32_t prefix_block_tokens) {
    return PrefixTree::block_bytes(prefix_block_tokens) +
           kSeenPathsPerBlock * SeenPaths::kPathBytes;
  }

  // See SeenPaths::record. flush() forgets all recorded paths.
  int32_t record(std::span<const uint64_t> paths) { return seen_.record(paths); }

  // Returns: the longest cached path of `prompt`, at most `tokens` tokens. All its blocks have a
  // grade that the sequence accepts. At most one format besides the sequence's own is used.
  // `known` is an earlier result for the same sequence. If it is not out of date, the search goes
  // on from there.
  KvMatch match(const KvPrompt& prompt, int32_t tokens, const KvMatch& known) const;
  int32_t tokens_of(const KvMatch& match) const {
    return match.blocks * tree_.prefix_block_tokens() +
           match.short_blocks * tree_.short_block_tokens();
  }
  // Returns: the match without its short blocks, which takes no pages for copies.
  KvMatch whole_blocks_of(const KvMatch& match) const;
  // Pages of the match that unlocked_pages() counts now, and no longer after attach().
  int64_t unlocked_pages(const KvMatch& match) const;

  // Lets an empty slot begin with the matched blocks, and locks them. section_pages: see KvPrompt.
  // Requires: the tree's version has not changed since `match` was made. If the match has short
  // blocks, own_short_blocks() is the next call for the slot.
  void attach(int32_t slot, KvTiers tiers, int32_t section_pages, const KvMatch& match);
  // The queries of the slot have moved to `position`, and it gives back the pages of layers with
  // windows that they have passed (KvPassed).
  // Returns: those of these pages that the cache keeps.
  int64_t pass(int32_t slot, int32_t position);
  int64_t attached_short_pages(int32_t slot) const;
  // Copies the pages of the slot's short blocks, and unlocks these blocks.
  // Requires: attached_short_pages() is not 0, and as many pages are free.
  void own_short_blocks(int32_t slot);
  // Inserts the slot's blocks behind those that it holds already: the whole blocks of the prompt's
  // first `tokens` tokens. The slot's rows hold the closed ones of `stored` tokens. If a block is
  // in the tree already, there are two cases:
  //   - It is unlocked, with the level and grade of the slot's block: the slot's block replaces it.
  //     With `replace_coarser`, also if the slot's block is finer in level or grade and coarser in
  //     neither. A changed label invalidates earlier matches.
  //   - Else the slot stops: it inserts nothing more and keeps its further blocks for itself.
  // Returns: pages of the replaced blocks, which are free now.
  // Requires: the high tier of the slot's rows is as kv_store wrote it, i.e. not compressed; or the
  // policy replays, and the last of the blocks is the section at the end of the slot's rows.
  struct Insertion {
    int32_t tokens = 0;
    int32_t stored = 0;
    bool replace_coarser = false;
  };
  int64_t insert(int32_t slot, const KvPrompt& prompt, const Insertion& insertion);
  // Inserts short blocks behind the slot's whole ones, up to `insertion.tokens` tokens, and fewer
  // than a whole block has. They replace unlocked ones of the same grade and, with
  // `replace_coarser`, of a coarser one. The first block that they do not replace ends it.
  // Returns: pages of the replaced blocks, which are free now.
  // Requires: the slot is released next; its rows hold the closed ones of `stored` tokens, as
  // kv_store wrote them behind the whole blocks.
  int64_t insert_short_blocks(int32_t slot, const KvPrompt& prompt, const Insertion& insertion);
  // The target becomes holder of the source's path, as far as its first `tokens` tokens reach. If
  // these tokens end inside a block of the path, the target locks this block too: it shares the
  // block's first pages. If they have closed groups behind the path, both slots stop inserting,
  // because two slots cannot own the pages of one block.
  void fork(int32_t source, int32_t target, int32_t tokens);
  void release(int32_t slot);  // unlocks the slot's path

  // Removes blocks from the cache, from the slot's last block backwards, while the block has the
  // slot's own format and only this slot uses it. Their pages then belong to the slot alone. Pages
  // of layers with windows that the slot has passed become free.
  struct HandedOver {
    int32_t blocks = 0;
    int64_t pages_freed = 0;
  };
  HandedOver hand_over(int32_t slot);

  // ---- section step (section_step.cpp). Whole blocks that no sequence uses are replayed, one by
  // one, and become compressed sections. A block is due when all blocks before it are sections. So
  // its compressed tokens depend on its path and its grade alone.

  // Returns: the path that ends with the least recently used block that is due; no blocks if there
  // is none. The replay behind it must fit the context.
  KvMatch due_block() const;
  // Pages of a compressed section of the section step; 0 without one.
  int64_t section_step_pages() const {
    return has_section_step() ? tree_.prefix_block_pages(section_level_) : 0;
  }
  // Requires, of the following: the slot was attached to a path of due_block().
  std::span<const int32_t> last_tokens(int32_t slot) const { return tree_.tokens(at(slot).node); }
  // Returns: true if another sequence, or a pin, uses the slot's last block.
  bool last_is_used(int32_t slot) const { return tree_.locks(at(slot).node) > 1; }
  // The slot alone owns the pages of its last block, and the tree expects a section in their place.
  // Requires: !last_is_used(slot).
  void take_last_block(int32_t slot);
  // Requires: kv_compress has run on the slot since take_last_block().
  void give_last_section(int32_t slot);

  // Blocks of the slot that are in a lower format than its own.
  int32_t low_blocks(int32_t slot) const { return at(slot).low_blocks; }
  // Pages of the slot's blocks, by tier. High tier: only blocks that end behind `from_token`, which
  // is 0 or not before the end of the low tier. Without pages of layers with windows.
  int64_t cached_high_pages(int32_t slot, int32_t from_token) const;
  int64_t cached_windowed_pages(int32_t slot) const;  // in layers with windows
  int64_t cached_low_pages(int32_t slot) const;
  // Simulates the release of slots, one more with each call since the last forget_releases().
  // Changes no lock.
  // Returns: pages that become unlocked with this slot.
  int64_t pages_unlocked_by_release(int32_t slot);
  void forget_releases();

  // Demotes and evicts until at least `pages` more pages are free or no unlocked block is left.
  // Returns: pages freed.
  int64_t make_room(int64_t pages);
  int64_t unlocked_pages() const { return tree_.unlocked_pages(); }
  // Removes all pins and evicts all blocks that no running sequence uses.
  // Returns: pages freed.
  int64_t flush();

  using Time = std::chrono::steady_clock::time_point;
  struct PinTerms {
    Time until;
    int32_t owner = 0;                                         // tenant
    int64_t max_tokens = std::numeric_limits<int64_t>::max();  // of all pins of the owner
  };
  // Keeps the slot's path until a time, even if pages run out. Replaces those pins of the same
  // owner that keep a part of the path and end no later.
  // Returns: false, and pins nothing, if fewer than `reserve` pages would remain unpinned, or if
  // the owner's pins would keep too many tokens.
  bool pin(int32_t slot, const PinTerms& terms, int64_t reserve);
  void unpin(Time now);  // removes the pins whose time has passed

  // ---- stores below the cache (stored_blocks.cpp). Whole blocks that are evicted are written to
  // them, in the format that they have then. Behind blocks that prompts continue they are read
  // again. Short blocks are not stored.

  BlockTiers::Shape stored_shape() const;
  // From now on evicted blocks are written to the stores.
  // Requires: the cache is empty; pages in host memory; no layer has a window. The stores outlive
  // this.
  void store_in(BlockTiers& tiers);
  // Writes at most so many blocks that no store has, if the stores outlive the process. So a crash
  // loses the newest ones alone. Drops none: a queue that is half full is left alone.
  // Returns: true if more such blocks are left.
  bool save_some(int32_t most);
  void save_all();  // likewise all blocks that nobody uses; removes all pins, and waits
  // Returns: true if a store has the block of `prompt` behind a match of at most `tokens` tokens.
  bool is_continued(const KvPrompt& prompt, int32_t tokens, const KvMatch& match) const;
  // Describes all blocks behind a match, up to `tokens` tokens.
  void describe(const KvPrompt& prompt, int32_t tokens, const KvMatch& match,
                BlockReader::Job& job) const;
  // Returns: the pages that a stored block takes; -1 if it is no block of this cache.
  int64_t pages_of(const BlockBuffer& stored) const;
  // Adds a stored block behind `before`, whose lock moves to it; kNone: at the beginning of a path.
  // Returns: the block, locked; kNone, and nothing has changed, if there is such a block, or no
  // room for one more.
  // Requires: a lock on `before`; pages_of() pages are free.
  PrefixTree::Node restore(const KvPrompt& prompt, PrefixTree::Node before,
                           const BlockBuffer& stored);
  void lock(PrefixTree::Node node) { tree_.lock(node); }
  void unlock(PrefixTree::Node node) { tree_.unlock(node); }

  int32_t prefix_block_tokens() const { return tree_.prefix_block_tokens(); }
  PrefixCacheStats stats() const;
  void outline(PrefixOutline& out);  // allocates nothing
  // Adds the cache's pages to `shared`. of_formats: [formats], in the arena's order.
  void add_pages(std::span<KvFormatPages> of_formats) const;
  void check_integrity() const;  // aborts if inconsistent; for tests

 private:
  static constexpr size_t kBatch = 64;  // maximum blocks of one op
  // More paths are recorded than blocks fit into the cache. A prompt may recur after many others,
  // and those were compressed instead of cached.
  static constexpr int64_t kSeenPathsPerBlock = 4;
  static constexpr uint8_t kNoLevel = PrefixTree::kMaxLevels;

  // The path that a slot holds.
  struct Holder {
    PrefixTree::Node node = PrefixTree::kNone;  // last block; locked by the slot
    int32_t blocks = 0;                         // whole ones
    int32_t short_blocks = 0;                   // behind these, until they are copied
    int64_t part_pages = 0;  // first pages of one more block, which a fork shares; `node` if any
    int32_t low_blocks = 0;
    int32_t section_blocks = 0;  // in section_level_, with own_level a whole format
    uint8_t low_level = 0;
    uint8_t own_level = 0;
    uint8_t grade = 0;
    bool stopped = false;      // inserts nothing more
    int32_t passed = 0;        // KvPassed::to
    int32_t windows_from = 0;  // the slot locks the windows of the blocks [windows_from, blocks)

    int32_t depth() const { return blocks + short_blocks + (part_pages > 0 ? 1 : 0); }
  };
  struct Pin {
    PrefixTree::Node node;
    Time until;
    int64_t pages;
    int32_t owner;
    int64_t tokens;
    int32_t windowed_blocks;  // last ones, whose windows it locks
  };
  void unlock(const Pin& pin);
  bool replaces(const Pin& old, int32_t slot, const PinTerms& terms) const;

  const Holder& at(int32_t slot) const { return holders_[static_cast<size_t>(slot)]; }
  Holder& at(int32_t slot) { return holders_[static_cast<size_t>(slot)]; }
  uint8_t level_of(KvFormat format, int32_t section_pages = 0) const;
  // The level of whole formats that has the holder's own format.
  uint8_t whole_level_of(const Holder& holder) const {
    return level_of(arena_.shape().formats[tier_of(holder.own_level)]);
  }
  int64_t tokens_of(const Holder& holder) const {
    return int64_t{holder.blocks} * tree_.prefix_block_tokens() +
           int64_t{holder.short_blocks} * tree_.short_block_tokens();
  }
  // Tokens of a short block number `index` behind `blocks` whole ones.
  std::span<const int32_t> short_block(std::span<const int32_t> tokens, int32_t blocks,
                                       int32_t index) const;
  void match_short_blocks(const KvPrompt& prompt, int32_t tokens, KvMatch& match) const;
  PrefixBlock block_of(PrefixTree::Node node) const;
  std::span<const int32_t> block(std::span<const int32_t> tokens, int32_t index) const;
  struct NewBlock {
    std::span<const int32_t> tokens;
    uint64_t hash;
    uint8_t level;
    bool replace_coarser;
  };
  // Returns: the node for the holder's next block, without pages, and locked instead of the
  // holder's last one; kNone if another block has the place and is not replaced. Adds the pages of
  // a replaced block to `freed`.
  PrefixTree::Node claim(const Holder& holder, std::string_view salt, const NewBlock& block,
                         int64_t& freed);
  bool is_replaceable(PrefixTree::Node node, const NewBlock& block, uint8_t grade) const;
  void share(int32_t slot, PrefixTree::Node node, int32_t stored, bool windows);

  // ---- windows (windowed_blocks.cpp)
  WindowedPages windows_of(const Holder& holder, int32_t block) const;
  int32_t page_tokens(const Holder& holder) const {
    return arena_.shape().layout(tier_of(holder.own_level)).capacity;
  }
  // Number of last blocks of a path whose windows a continuation reads.
  int32_t windowed_blocks(uint8_t own_level) const;
  // Pages of a row that the slot and the cache have, from `passed` on.
  int64_t cached_pages_of_row(const Holder& holder, int32_t passed) const;
  bool has_windows_for(const Holder& holder, int32_t block) const;
  PrefixTree::Node node_of(const Holder& holder, int32_t block) const;
  void lock_windows(PrefixTree::Node last, int32_t blocks);
  void unlock_windows(PrefixTree::Node last, int32_t blocks);
  int64_t drop_windows(int64_t pages);  // see evict()
  // Unlocks the windows of the holder's last block, which is handed over.
  // Returns: those of their pages that the slot does not have.
  int64_t take_windows(Holder& holder, PrefixTree::Node last);
  PrefixTree::Node add(PrefixTree::Node parent, const NewBlock& block, uint8_t grade);
  void erase(PrefixTree::Node leaf);
  int64_t demote(uint8_t level, int64_t pages);
  enum class Saving : bool { no, yes };
  int64_t evict(int64_t pages, Saving saving = Saving::yes);

  // ---- stores
  uint8_t accepted_by(const KvPrompt& prompt) const;  // the coarsest grade
  BlockKey key_before(PrefixTree::Node parent) const;
  BlockKey key_behind(const KvPrompt& prompt, const KvMatch& match) const;
  void name(PrefixTree::Node node);  // a new one
  void save(PrefixTree::Node node, bool wait);
  void clear_stores();

  KvArena& arena_;
  const Backend& backend_;
  const Stream stream_;
  // Index of a level's format in the arena. row_pages: of a compressed section, as a mean over
  // rows; 0: blocks are as kv_store wrote them.
  using Level = KvSectionBlock;
  static std::vector<Level> levels_of(const KvArenaShape& shape);
  static PrefixTree::Shape tree_shape(const KvArenaShape& shape);
  uint8_t tier_of(uint8_t level) const { return levels_[level].tier; }
  bool is_section(uint8_t level) const { return levels_[level].row_pages > 0; }
  bool has_section_step() const { return section_level_ != kNoLevel; }

  // The most precise level first, compressed sections behind all formats. next_level_: the level to
  // which a level is demoted, or kNoLevel.
  std::vector<Level> levels_;
  std::array<uint8_t, PrefixTree::kMaxLevels> next_level_;
  // Levels before and after the section step; kNoLevel without one.
  uint8_t whole_level_ = kNoLevel;
  uint8_t section_level_ = kNoLevel;
  PrefixTree tree_;
  SeenPaths seen_;
  std::vector<Holder> holders_;  // [slots]
  std::vector<Pin> pins_;
  std::vector<PrefixBlock> blocks_;  // arguments of one op, as the next two
  std::vector<int32_t> handles_;
  std::vector<KvShare> shares_;
  const std::span<std::byte> scratch_;
  // pages_unlocked_by_release(): simulated releases of each node, and the nodes that have some. A
  // node passes its releases on to its parent only when none of its locks is left, because a
  // remaining lock also locks the parent.
  std::vector<int32_t> releases_;
  std::vector<PrefixTree::Node> released_;
  PrefixOutliner outliner_;
  PrefixEvents* events_ = nullptr;  // null: none are reported
  PrefixTree::Node reported_root_ = PrefixTree::kNone;
  BlockTiers* tiers_ = nullptr;  // null: evicted blocks are lost
  std::vector<BlockKey> keys_;   // [blocks]
  UnsavedBlocks unsaved_;
  PrefixCacheStats counting_;
};

}  // namespace tessera
