#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "engine/kv/prefix_blocks.h"
#include "engine/kv/prefix_tree.h"
#include "engine/kv/slot_paths.h"

namespace tessera {

// The pins of the prefix cache: paths that stay until a time, even if pages run out.
class PrefixPins {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Terms {
    Time until;
    int32_t owner = 0;                                         // tenant
    int64_t max_tokens = std::numeric_limits<int64_t>::max();  // of all pins of the owner
  };
  struct Pin {
    PrefixTree::Node node;
    Time until;
    int64_t pages;
    int32_t owner;
    int64_t tokens;
    int32_t windowed_blocks;  // last ones, whose windows it locks
  };

  // blocks: outlives this.
  explicit PrefixPins(PrefixBlocks& blocks) : blocks_(blocks), tree_(blocks.tree()) {}

  // Keeps a slot's path, of so many tokens. Replaces those pins of the same owner that keep a part
  // of the path and end no later.
  // Returns: false, and pins nothing, if more than `most_pages` pages would be pinned, or if the
  // owner's pins would keep too many tokens.
  bool pin(const SlotPath& path, int64_t tokens, const Terms& terms, int64_t most_pages);
  void unpin(Time now);  // removes the pins whose time has passed
  void clear() { unpin(Time::max()); }

  std::span<const Pin> all() const { return pins_; }
  int64_t blocks() const;  // summed over all pins

 private:
  void unlock(const Pin& pin);
  // Returns: true if a new pin of the path replaces the old one.
  bool replaces(const Pin& old, const SlotPath& path, const Terms& terms) const;

  PrefixBlocks& blocks_;
  PrefixTree& tree_;  // of `blocks_`
  std::vector<Pin> pins_;
};

}  // namespace tessera
