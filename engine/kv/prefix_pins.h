#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "engine/kv/kv_match.h"
#include "engine/kv/prefix_blocks.h"
#include "engine/kv/prefix_tree.h"

namespace tessera {

// The pins of the prefix cache: paths that stay until some time after their last use, even if pages
// run out. While it can, a pin keeps its blocks in memory. When pages lack for requests all the
// same, pinned blocks that no sequence uses go to the stores or down the ladder (yield()).
class PrefixPins {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Terms {
    Time now;
    std::chrono::seconds ttl{0};
    int32_t owner = 0;                                         // tenant
    int64_t max_tokens = std::numeric_limits<int64_t>::max();  // that all pins of the owner keep
  };
  struct Pin {
    PrefixTree::Node node;
    Time until;
    Time used;
    std::chrono::seconds ttl;
    int32_t owner;
    int32_t windowed_blocks;  // last ones, whose windows it locks
    bool replaced = false;    // by the pin that is added now
  };

  // blocks: outlives this. most_blocks: that it may have.
  PrefixPins(PrefixBlocks& blocks, int32_t most_blocks);

  // Pins a path. Replaces those pins of the same owner that keep a part of the path and end no
  // later. Blocks that several pins keep count once.
  // Returns: false, and pins nothing, if more than `most_pages` pages would be pinned, or if the
  // owner's pins would keep too many tokens.
  // Requires: the match is up to date.
  bool pin(const KvMatch& path, const Terms& terms, int64_t most_pages);
  // The owner reads this path: its pins on it begin anew.
  void renew(const KvMatch& path, int32_t owner, Time now);
  void unpin(Time now);  // removes the pins whose time has passed
  void clear() { unpin(Time::max()); }
  void end(std::span<const PrefixTree::Node> nodes, int32_t owner);  // removes pins of these nodes

  // Gives memory back: one pin whose blocks are in the stores, or are on their way there, ends;
  // without stores a batch of pinned blocks is demoted.
  struct Yielded {
    bool any = false;
    int64_t pages_freed = 0;  // those of a pin that ends become unlocked instead
  };
  Yielded yield();

  // Returns: true if no running sequence uses the node.
  bool is_only_pinned(PrefixTree::Node node) const {
    return tree_.locks(node) == locks_[static_cast<size_t>(node)];
  }
  std::span<const Pin> all() const { return pins_; }
  int64_t blocks() const;        // summed over all pins
  void check_integrity() const;  // aborts if inconsistent; for tests

 private:
  struct Kept {
    int64_t pages = 0;
    int64_t tokens = 0;
  };

  void lock(const Pin& pin);
  void unlock(const Pin& pin);
  void begin_count() { ++turn_; }  // forgets what count() has counted
  bool is_counted(PrefixTree::Node node) const {
    return counted_[static_cast<size_t>(node)] == turn_;
  }
  // Adds the blocks of the path to `kept` that were not counted before.
  void count(PrefixTree::Node last, Kept& kept);
  bool store_one();
  int64_t demote_some();

  PrefixBlocks& blocks_;
  PrefixTree& tree_;  // of `blocks_`
  std::vector<Pin> pins_;
  std::vector<int32_t> locks_;     // [blocks], of pins
  std::vector<uint64_t> counted_;  // [blocks], the turn in which count() saw the block
  uint64_t turn_ = 0;
};

}  // namespace tessera
