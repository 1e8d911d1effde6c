#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/kv/kv_match.h"
#include "engine/kv/pending_blocks.h"
#include "engine/kv/prefix_levels.h"
#include "engine/kv/prefix_tree.h"
#include "engine/tier/block_tiers.h"
#include "kernels/kv/kv_arena.h"
#include "kernels/kv/kv_pool.h"

namespace tessera {

// The stores below the prefix cache. Whole blocks that are evicted are written to them, in the
// format that they have then. Behind blocks that prompts continue they are read again
// (PrefixBlocks::restore). Short blocks are not stored. Without stores nothing here has an effect.
class StoredBlocks {
 public:
  // Arguments outlive this.
  StoredBlocks(KvArena& arena, const PrefixTree& tree, const PrefixLevels& levels)
      : arena_(arena), tree_(tree), levels_(levels) {}

  BlockTiers::Shape shape() const;
  // From now on evicted blocks are written to the stores.
  // Requires: the cache is empty; pages in host memory; no layer has a window. The stores outlive
  // this.
  void open(BlockTiers& tiers);
  // From now on copies of blocks are told under the names that they have in `events`.
  // Requires: the same; `events` outlives this.
  void report(const PrefixEvents& events) { events_ = &events; }

  // ---- what happens to blocks of the cache
  void added(PrefixTree::Node node);
  void replaced(PrefixTree::Node node);  // its pages have other contents
  void erased(PrefixTree::Node node) { unsaved_.forget(node); }
  bool any() const { return tiers_ != nullptr; }  // there are stores
  // True: blocks survive the process.
  bool durable() const { return tiers_ != nullptr && tiers_->durable(); }
  // Queues a block for the writer, and waits for room in its queue until that time.
  // Returns: false if there was none: the block is dropped.
  bool save(PrefixTree::Node node, BlockWriter::Time until = BlockWriter::Time::min());
  // Queues the blocks of a path that no store has.
  // Returns: false if the queue has no room for all of them.
  bool save_path(PrefixTree::Node last);
  // Writes at most so many blocks that no store has, if the stores outlive the process. So a crash
  // loses the newest ones alone. Drops none: a queue that is half full is left alone.
  // Returns: true if more such blocks are left.
  bool save_some(int32_t most);
  // Writes all unlocked blocks likewise, and waits until they are written, or until that time.
  // Requires: durable().
  void save_all(BlockWriter::Time until);
  void clear();  // forgets everything that is stored

  // ---- what prompts continue. whole: their match without short blocks.

  // Returns: the store that has the block of `prompt` behind a match of at most `tokens` tokens.
  std::optional<size_t> continued_in(const KvPrompt& prompt, int32_t tokens,
                                     const KvMatch& whole) const;
  // Describes all blocks behind a match, up to `tokens` tokens.
  // Requires: stores.
  void describe(const KvPrompt& prompt, int32_t tokens, const KvMatch& whole,
                BlockReader::Job& job) const;
  // Returns: the pages that a stored block takes; -1 if it is no block of this cache.
  int64_t pages_of(const BlockBuffer& stored) const;
  // Reads the pages of a stored block into those of a node.
  // Requires: pages_of() pages are free.
  void read(const BlockBuffer& stored, const PrefixBlock& block);

  // ---- blocks as bytes (engine/kv/prefix_transfer.h)

  // Errors: FailedPrecondition without stores, because their keys tell the checkpoint.
  absl::Status check_moves() const;
  // Requires, of the following: check_moves().
  const BlockKey& fingerprint() const { return tiers_->keys().fingerprint(); }
  size_t bytes_of(PrefixTree::Node node) const;
  void write(PrefixTree::Node node, std::span<std::byte> bytes) const;

 private:
  bool keeps(PrefixTree::Node node) const { return tiers_ != nullptr && !tree_.is_short(node); }
  BlockKey key_before(PrefixTree::Node parent) const;
  BlockKey key_behind(const KvPrompt& prompt, const KvMatch& whole) const;
  std::span<const int32_t> block(const KvPrompt& prompt, int32_t index) const;

  KvArena& arena_;
  const PrefixTree& tree_;
  const PrefixLevels& levels_;
  BlockTiers* tiers_ = nullptr;           // null: evicted blocks are lost
  std::vector<BlockKey> keys_;            // [blocks]
  const PrefixEvents* events_ = nullptr;  // null: none are told
  PendingBlocks unsaved_;
};

}  // namespace tessera
