#pragma once

#include <cstdint>
#include <vector>

#include "engine/kv/kv_match.h"
#include "engine/kv/prefix_blocks.h"
#include "engine/kv/prefix_pins.h"

namespace tessera {

// What clients hint about paths of the prefix cache: that they go down the ladder, or go first.
// Only the end of a path is meant: the blocks that no other path shares and no sequence uses.
// Functions that free pages return their number for KvAccounting. Not thread-safe.
class PrefixHints {
 public:
  // Arguments outlive this. path_blocks: of the longest path.
  PrefixHints(PrefixBlocks& blocks, PrefixPins& pins, int32_t path_blocks);

  // The end of the path goes one step down the ladder, by demote_some().
  void demote(const KvMatch& path);
  // Demotes at most so many blocks.
  // Returns: pages freed.
  int64_t demote_some(int32_t most);
  bool demotes() const { return !blocks_.due().empty(); }  // more blocks are left
  // The end of the path is evicted before all other blocks. Pins of the owner on it end.
  void give_up(const KvMatch& path, int32_t owner);
  // The path was used now, as far as the order of eviction is concerned.
  void touch(const KvMatch& path);

 private:
  void find_end(const KvMatch& path);  // sets `end_`, the last block first

  PrefixBlocks& blocks_;
  PrefixTree& tree_;  // of `blocks_`
  PrefixPins& pins_;
  std::vector<PrefixTree::Node> end_;
};

}  // namespace tessera
