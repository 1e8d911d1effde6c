#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/kv/prefix_tree.h"

namespace tessera {

// Nodes of a prefix tree that wait for something, for example for being written to a store; the
// oldest first. All calls take constant time; memory is allocated by begin().
class PendingBlocks {
 public:
  void begin(size_t blocks) {
    ring_.resize(blocks);
    state_.resize(blocks);
  }
  bool empty() const { return count_ == 0; }
  void add(PrefixTree::Node node) {
    uint8_t& state = state_[static_cast<size_t>(node)];
    if (state == kAbsent) {
      ring_[(head_ + count_) % ring_.size()] = node;
      ++count_;
    }
    state = kWanted;
  }
  // The node has left the tree.
  void forget(PrefixTree::Node node) {
    if (!state_.empty() && state_[static_cast<size_t>(node)] == kWanted) {
      state_[static_cast<size_t>(node)] = kForgotten;
    }
  }
  // Returns: the next node; kNone if that one has left the tree.
  // Requires: not empty().
  PrefixTree::Node take() {
    const PrefixTree::Node node = ring_[head_];
    head_ = (head_ + 1) % ring_.size();
    --count_;
    uint8_t& state = state_[static_cast<size_t>(node)];
    const bool wanted = state == kWanted;
    state = kAbsent;
    return wanted ? node : PrefixTree::kNone;
  }

 private:
  static constexpr uint8_t kAbsent = 0;     // not in the ring
  static constexpr uint8_t kWanted = 1;     // in the ring
  static constexpr uint8_t kForgotten = 2;  // in the ring, and no longer in the tree

  std::vector<PrefixTree::Node> ring_;
  std::vector<uint8_t> state_;  // [blocks]
  size_t head_ = 0;
  size_t count_ = 0;
};

}  // namespace tessera
