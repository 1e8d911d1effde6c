#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/kv/kv_match.h"
#include "engine/kv/prefix_blocks.h"
#include "engine/kv/prefix_tree.h"
#include "kernels/backend.h"
#include "kernels/kv/kv_arena.h"

namespace tessera {

// The path of prefix blocks that a slot holds. The slot has locked its last block, and with it all
// before.
struct SlotPath {
  PrefixTree::Node node = PrefixTree::kNone;  // last block
  int32_t blocks = 0;                         // whole ones
  int32_t short_blocks = 0;                   // behind these, until they are copied
  int64_t part_pages = 0;  // first pages of one more block, which a fork shares; `node` if any
  int32_t low_blocks = 0;
  int32_t section_blocks = 0;  // of the section step, with own_level a whole format
  uint8_t low_level = 0;
  uint8_t own_level = 0;
  uint8_t grade = 0;
  bool stopped = false;      // inserts nothing more
  int32_t passed = 0;        // KvPassed::to
  int32_t windows_from = 0;  // the slot locks the windows of the blocks [windows_from, blocks)

  int32_t depth() const { return blocks + short_blocks + (part_pages > 0 ? 1 : 0); }
};

// The paths of all slots: slots begin with cached blocks, and leave their own in the cache.
// Sequences never write to the pages of a block.
//
// Blocks of hundreds of tokens leave a long rest behind the last whole one. Where the arena has
// short blocks, sequences leave this rest in the cache when they are released. A sequence that
// begins with short blocks gets its own copies of their pages. It will store the rest of the whole
// block behind them, and a section may then be compressed.
//
// Functions that free pages return their number for KvAccounting. Not thread-safe.
class SlotPaths {
 public:
  // Arguments outlive this.
  SlotPaths(PrefixBlocks& blocks, KvArena& arena, const Backend& backend, Stream stream);
  SlotPaths(const SlotPaths&) = delete;
  SlotPaths& operator=(const SlotPaths&) = delete;

  const SlotPath& of(int32_t slot) const { return paths_[static_cast<size_t>(slot)]; }
  std::span<const SlotPath> all() const { return paths_; }  // [slots]
  int64_t tokens_of(const SlotPath& path) const;

  // Lets an empty slot begin with the matched blocks, and locks them. section_pages: see KvPrompt.
  // Requires: the tree's version has not changed since `match` was made. If the match has short
  // blocks, own_short_blocks() is the next call for the slot.
  void attach(int32_t slot, KvTiers tiers, int32_t section_pages, const KvMatch& match);
  int64_t attached_short_pages(int32_t slot) const;
  // Copies the pages of the slot's short blocks, and unlocks these blocks.
  // Requires: attached_short_pages() is not 0, and as many pages are free.
  void own_short_blocks(int32_t slot);
  // The queries of the slot have moved to `position`, and it gives back the pages of layers with
  // windows that they have passed (KvPassed).
  // Returns: those of these pages that the cache keeps.
  int64_t pass(int32_t slot, int32_t position);
  // Inserts the slot's blocks behind those that it holds already: the whole blocks of the prompt's
  // first `tokens` tokens. The slot's rows hold the closed ones of `stored` tokens. A block in the
  // tree is replaced as PrefixBlocks::claim says. At the first that is not, the slot stops: it
  // inserts nothing more and keeps its further blocks for itself.
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

  // ---- section step: the slot was attached to a path of PrefixLookup::due_block().
  std::span<const int32_t> last_tokens(int32_t slot) const { return tree_.tokens(of(slot).node); }
  // Returns: true if another sequence, or a pin, uses the slot's last block.
  bool last_is_used(int32_t slot) const { return tree_.locks(of(slot).node) > 1; }
  // The slot alone owns the pages of its last block, and the tree expects a section in their place.
  // Requires: !last_is_used(slot).
  void take_last_block(int32_t slot);
  // Requires: kv_compress has run on the slot since take_last_block().
  void give_last_section(int32_t slot);

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

  void check_integrity() const;  // aborts if inconsistent; for tests

 private:
  SlotPath& at(int32_t slot) { return paths_[static_cast<size_t>(slot)]; }
  const PrefixLevels& levels() const { return blocks_.levels(); }
  int32_t block_tokens() const { return tree_.prefix_block_tokens(); }
  // The place for the path's next block.
  PrefixTree::Node parent_of_next(const SlotPath& path, std::string_view salt);
  void share_queued();

  // ---- windows
  int32_t page_tokens(const SlotPath& path) const {
    return arena_.shape().layout(levels().tier(path.own_level)).capacity;
  }
  WindowedPages windows_of(const SlotPath& path, int32_t block) const;
  bool has_windows_for(const SlotPath& path, int32_t block) const;
  PrefixTree::Node node_of(const SlotPath& path, int32_t block) const;
  // Unlocks the windows of the path's last block, which is handed over.
  // Returns: those of their pages that the slot does not have.
  int64_t take_windows(SlotPath& path, PrefixTree::Node last);

  PrefixBlocks& blocks_;
  PrefixTree& tree_;  // of `blocks_`
  KvArena& arena_;
  const Backend& backend_;
  const Stream stream_;
  std::vector<SlotPath> paths_;        // [slots]
  std::vector<PrefixBlock> attached_;  // arguments of one op, as the next one
  std::vector<KvShare> shares_;
  // pages_unlocked_by_release(): simulated releases of each node, and the nodes that have some. A
  // node passes its releases on to its parent only when none of its locks is left, because a
  // remaining lock also locks the parent.
  std::vector<int32_t> releases_;
  std::vector<PrefixTree::Node> released_;
};

}  // namespace tessera
