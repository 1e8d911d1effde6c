#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/kv/prefix_tree.h"

namespace tessera {

// A bounded picture of the prefix tree, for observers: the blocks in use, and of the others the
// most recently used. It has no tokens and no salts.
struct PrefixOutline {
  static constexpr int32_t kMaxBlocks = 1024;

  struct Block {
    int32_t id = 0;       // its handle, which a later block may get after this one was evicted
    int32_t parent = -1;  // index in `blocks` of the block before it; -1: the first of its path
    uint8_t format = 0;   // index into the arena's formats, as the next one
    uint8_t grade = 0;    // format of the block's grade
    bool locked = false;
    uint64_t salt = 0;  // salt_mark() of its root
  };
  std::vector<Block> blocks;  // a parent comes before its children
  int64_t omitted = 0;        // blocks of the tree that are not here

  PrefixOutline() { blocks.reserve(kMaxBlocks); }

  // Returns: a number by which equal salts are recognised in this process; 0: no salt.
  static uint64_t salt_mark(std::string_view salt);
};

// Writes outlines. Allocates only when constructed.
class PrefixOutliner {
 public:
  // max_path: blocks of the longest path. tree: outlives this.
  PrefixOutliner(const PrefixTree& tree, int32_t max_path);

  // Call in this order: begin(), then add_path() for each locked path, then finish().
  void begin(PrefixOutline& out);
  void add_path(PrefixTree::Node node);  // the node and its ancestors
  void finish();                         // adds unlocked blocks, the most recently used first

 private:
  static constexpr size_t kPlaces = 4096;  // of the hash table: a power of two, sparsely filled
  static_assert(kPlaces >= 2 * PrefixOutline::kMaxBlocks);

  int32_t& place(PrefixTree::Node node);
  bool add(PrefixTree::Node node);  // Returns: false if there is no room, or no parent

  const PrefixTree& tree_;
  PrefixOutline* out_ = nullptr;
  std::vector<PrefixTree::Node> path_;
  std::array<int32_t, kPlaces> places_{};  // index in out_->blocks plus one; 0: free
};

}  // namespace tessera
