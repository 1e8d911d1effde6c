#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/kv/kv_match.h"
#include "engine/kv/pending_blocks.h"
#include "engine/kv/prefix_levels.h"
#include "engine/kv/prefix_tree.h"
#include "engine/kv/stored_blocks.h"
#include "engine/tier/prefix_events.h"
#include "kernels/backend.h"
#include "kernels/kv/kv_arena.h"

namespace tessera {

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

// The blocks of the prefix cache, whoever uses them: their places in the tree and their pages.
//
// When pages run out, the least recently used unlocked blocks are first demoted one step down the
// ladder. They are evicted when no step is left. Windows (PrefixTree) that no sequence reads are
// dropped before blocks that were used later.
//
// Functions that free pages return their number for KvAccounting. Not thread-safe.
class PrefixBlocks {
 public:
  static constexpr size_t kBatch = 64;  // maximum blocks of one op

  // ladder: see PrefixLevels. scratch: memory for kv_demote, not owned; the caller may use it
  // between calls.
  // Requires: an arena with prefix blocks; arena, backend and scratch outlive this.
  PrefixBlocks(KvArena& arena, std::span<const uint8_t> ladder, const Backend& backend,
               Stream stream, std::span<std::byte> scratch);
  PrefixBlocks(const PrefixBlocks&) = delete;
  PrefixBlocks& operator=(const PrefixBlocks&) = delete;

  // From now on `events` receives the blocks without a salt that are stored in this format: those
  // that a router can tell from a prompt. section_pages: see KvPrompt.
  // Requires: the cache is empty; `events` outlives this.
  void report(PrefixEvents& events, KvFormat format, int32_t section_pages);
  // See PrefixLevels.
  // Requires: the cache is empty.
  void add_section_step(KvFormat format, int32_t section_pages);

  PrefixTree& tree() { return tree_; }
  const PrefixTree& tree() const { return tree_; }
  const PrefixLevels& levels() const { return levels_; }
  StoredBlocks& stored() { return stored_; }
  const StoredBlocks& stored() const { return stored_; }
  PrefixCacheStats& counts() { return counts_; }
  const PrefixCacheStats& counts() const { return counts_; }

  PrefixBlock block_of(PrefixTree::Node node) const { return levels_.block_of(tree_, node); }

  struct NewBlock {
    std::span<const int32_t> tokens;
    uint64_t hash;
    uint8_t level;
    bool replace_coarser;  // see claim()
  };
  // Adds a block without pages. See PrefixTree::insert.
  PrefixTree::Node add(PrefixTree::Node parent, const NewBlock& block, uint8_t grade);
  // Finds the place of a block behind `parent`, whose lock moves to it. If a block has the place
  // already, it is replaced in two cases, and its pages are free then:
  //   - It is unlocked, with the level and grade of the new one.
  //   - It is unlocked, with `replace_coarser`, and the new one is finer in level or grade and
  //     coarser in neither. A changed label invalidates earlier matches.
  // windows: the new block has windows, which earlier matches may count on.
  // Returns: the node, without pages; kNone if the place is taken, or no node is free.
  struct Claimed {
    PrefixTree::Node node = PrefixTree::kNone;
    int64_t pages_freed = 0;
  };
  Claimed claim(PrefixTree::Node parent, const NewBlock& block, uint8_t grade, bool windows);
  // Removes a leaf whose pages have gone.
  void erase(PrefixTree::Node leaf);
  // Takes a block's pages from it. It keeps its place for others.
  void drop_pages(PrefixTree::Node node);

  // Demotes and evicts until at least `pages` more pages are free or no unlocked block is left.
  // Returns: pages freed.
  int64_t make_room(int64_t pages);
  // Demotes a block one step down the ladder, in place: alone, or in a batch with those that follow
  // until finish_lowering().
  // Returns: pages freed; 0 if there is no step for it.
  // Requires: no running sequence reads the block.
  int64_t lower(PrefixTree::Node node);
  void finish_lowering();
  PendingBlocks& due() { return due_; }  // blocks to be demoted later (PrefixHints)
  const PendingBlocks& due() const { return due_; }
  // Evicts all unlocked blocks, and forgets those that are stored.
  // Returns: pages freed.
  int64_t flush();

  // Adds a stored block behind `before`, whose lock moves to it; kNone: at the beginning of a path.
  // Returns: the block, locked; kNone, and nothing has changed, if there is such a block, or no
  // room for one more.
  // Requires: a lock on `before`; StoredBlocks::pages_of() pages are free.
  PrefixTree::Node restore(const KvPrompt& prompt, PrefixTree::Node before,
                           const BlockBuffer& stored);

  // ---- windows of the last blocks of a path

  // Returns: number of last blocks of a path whose windows a continuation reads.
  int32_t windowed_blocks(uint8_t own_level) const;
  void lock_windows(PrefixTree::Node last, int32_t blocks);
  void unlock_windows(PrefixTree::Node last, int32_t blocks);

 private:
  enum class Saving : bool { no, yes };

  bool is_replaceable(PrefixTree::Node node, const NewBlock& block, uint8_t grade) const;
  int64_t demote(uint8_t level, int64_t pages);
  int64_t evict(int64_t pages, Saving saving);
  int64_t drop_windows(int64_t pages);

  KvArena& arena_;
  const Backend& backend_;
  const Stream stream_;
  PrefixLevels levels_;
  PrefixTree tree_;
  StoredBlocks stored_;
  const std::span<std::byte> scratch_;
  std::vector<PrefixBlock> batch_;          // arguments of one op, as the next one
  uint8_t lower_to_ = PrefixLevels::kNone;  // of the blocks in `batch_`
  std::vector<int32_t> handles_;
  PendingBlocks due_;
  PrefixEvents* events_ = nullptr;  // null: none are reported
  PrefixTree::Node reported_root_ = PrefixTree::kNone;
  PrefixCacheStats counts_;
};

}  // namespace tessera
