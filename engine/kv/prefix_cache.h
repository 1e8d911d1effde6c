#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/kv/kv_usage.h"
#include "engine/kv/prefix_blocks.h"
#include "engine/kv/prefix_hints.h"
#include "engine/kv/prefix_lookup.h"
#include "engine/kv/prefix_outline.h"
#include "engine/kv/prefix_pins.h"
#include "engine/kv/seen_paths.h"
#include "engine/kv/slot_paths.h"
#include "kernels/backend.h"
#include "kernels/kv/kv_arena.h"

namespace tessera {

// Prefixes that sequences share: the blocks in the radix tree, the paths that slots hold and those
// that are pinned, and the lookup. Part of KvCache, which handles slots and policies. Here a slot
// is only the holder of a path. Not thread-safe.
class PrefixCache {
 public:
  // See PrefixBlocks.
  PrefixCache(KvArena& arena, std::span<const uint8_t> ladder, const Backend& backend,
              Stream stream, std::span<std::byte> scratch);

  PrefixBlocks& blocks() { return blocks_; }
  const PrefixBlocks& blocks() const { return blocks_; }
  SlotPaths& paths() { return paths_; }
  const SlotPaths& paths() const { return paths_; }
  PrefixPins& pins() { return pins_; }
  PrefixHints& hints() { return hints_; }
  const PrefixLookup& lookup() const { return lookup_; }
  int32_t prefix_block_tokens() const { return blocks_.tree().prefix_block_tokens(); }
  int64_t unlocked_pages() const { return blocks_.tree().unlocked_pages(); }

  // Host bytes for each block, besides its pages and page tables.
  static int64_t block_bytes(int32_t prefix_block_tokens) {
    return PrefixTree::block_bytes(prefix_block_tokens) +
           kSeenPathsPerBlock * SeenPaths::kPathBytes;
  }

  // See SeenPaths::record. flush() forgets all recorded paths.
  int32_t record(std::span<const uint64_t> paths) { return seen_.record(paths); }
  // Removes all pins and evicts all blocks that no running sequence uses.
  // Returns: pages freed.
  int64_t flush();
  // Removes all pins, and writes all blocks that nobody uses to stores that outlive the process,
  // until that time.
  void save_all(BlockWriter::Time until);

  PrefixCacheStats stats() const;
  void outline(PrefixOutline& out);  // allocates nothing
  // Adds the cache's pages to `shared`. of_formats: [formats], in the arena's order.
  void add_pages(std::span<KvFormatPages> of_formats) const;
  void check_integrity() const;  // aborts if inconsistent; for tests

 private:
  // More paths are recorded than blocks fit into the cache. A prompt may recur after many others,
  // and those were compressed instead of cached.
  static constexpr int64_t kSeenPathsPerBlock = 4;

  const KvArena& arena_;
  PrefixBlocks blocks_;
  SlotPaths paths_;
  PrefixPins pins_;
  PrefixHints hints_;
  PrefixLookup lookup_;
  SeenPaths seen_;
  PrefixOutliner outliner_;
};

}  // namespace tessera
