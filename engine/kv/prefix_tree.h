#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

// A radix tree over token ids whose digit is a unit: a run of prefix_block_tokens tokens. A node is
// one unit behind the units of its ancestors, and its id is the unit's handle (kernels/kv_pool.h).
// So chains are never merged and nothing is ever split: locks, eviction, demotion and hand-over are
// exact to the unit, and a prompt of 4096 tokens is a walk of 64 nodes. Each step of a walk is one
// look-up in a hash table that all nodes share, and an exact comparison of tokens, so it costs the
// same however many sequences the tree holds.
//
// Pure host code, and it knows nothing of pages but how many a unit has. A node's level is how
// coarse its format is, 0 the most precise; its grade, no lower, is the coarsest level of anything
// that was read when it was computed. What a request accepts bounds the grade.
//
// Whoever uses a path locks it: a lock on a node counts for its ancestors too. What is not locked
// is kept in the order in which it was let go of, a path from its end, so the first is always a
// leaf, the least recently used one. All of it takes constant time for each node; memory is
// allocated at the start, but for the names of roots.
class PrefixTree {
 public:
  using Node = int32_t;
  static constexpr Node kNone = INT32_MIN;
  static constexpr int kMaxLevels = 16;

  struct Shape {
    int32_t blocks = 0;  // at most
    int32_t prefix_block_tokens = 0;
    std::array<int64_t, kMaxLevels> prefix_block_pages =
        {};  // of a unit of each level, over all heads
  };
  explicit PrefixTree(const Shape& shape);

  // Bytes that the tree takes for each unit.
  static int64_t block_bytes(int32_t prefix_block_tokens);

  static uint64_t hash(std::span<const int32_t> tokens);

  // Where the paths begin of what was stored under this salt in this format. kNone: nothing is
  // there. Nodes below 0 are roots.
  Node find_root(std::string_view salt, uint8_t format) const;
  // Makes one if need be. That of a salt vanishes with its last child; those without one stay.
  Node root(std::string_view salt, uint8_t format);

  // The child of `parent` with exactly these tokens, whose hash() is `hash`; or kNone.
  Node child(Node parent, std::span<const int32_t> tokens, uint64_t hash) const;
  // Adds one. The caller's lock on `parent` moves to it. Requires: there is none yet; the caller
  // has a lock on `parent`, or it is a root; fewer nodes than units.
  Node insert(Node parent, std::span<const int32_t> tokens, uint64_t hash, uint8_t level,
              uint8_t grade);

  void lock(Node node);      // and its ancestors; a root: nothing
  void unlock(Node node);    // the same
  void descend(Node child);  // a lock on its parent moves to it
  Node retreat(Node node);   // a lock on it moves to its parent, which is returned

  // The least recently used leaf that nobody has locked, and the least recently used node of that
  // level that nobody has locked. kNone: there is none.
  Node lru_leaf() const { return recent_.first; }
  Node lru_of_level(uint8_t level) const { return levels_[level].unlocked.first; }

  // Requires: a leaf without locks. Its handle is free.
  void erase(Node leaf);
  void relabel(Node node, uint8_t level, uint8_t grade);

  // Of a node: the node it stands behind, below 0 a root.
  Node parent(Node node) const { return at(node).parent; }
  uint8_t level(Node node) const { return at(node).level; }
  uint8_t grade(Node node) const { return at(node).grade; }
  int32_t locks(Node node) const { return at(node).locks; }
  bool is_unlocked(Node node) const { return at(node).live && at(node).locks == 0; }
  int32_t children(Node node) const { return at(node).children; }
  // Another number once the handle serves another node.
  uint32_t generation(Node node) const { return at(node).generation; }
  bool is_node(Node node, uint32_t generation) const {
    return at(node).live && at(node).generation == generation;
  }

  int32_t size() const { return size_; }
  int64_t pages() const { return pages_; }                    // of all nodes
  int64_t unlocked_pages() const { return unlocked_pages_; }  // of those that nobody has locked
  int64_t prefix_block_pages(uint8_t level) const { return shape_.prefix_block_pages[level]; }
  int32_t prefix_block_tokens() const { return shape_.prefix_block_tokens; }
  int32_t blocks_of(uint8_t level) const { return levels_[level].blocks; }
  // Changes whenever a walk may end elsewhere than before, but for what is inserted.
  uint64_t version() const { return version_; }

  // Aborts unless everything agrees with everything else. For tests.
  void check_integrity() const;

 private:
  struct Links {
    Node previous = kNone;
    Node next = kNone;
  };
  struct List {
    Node first = kNone;
    Node last = kNone;
  };
  struct Entry {
    Node parent = kNone;
    Node next_in_bucket = kNone;
    uint64_t hash = 0;
    int32_t children = 0;
    int32_t locks = 0;
    Links recent;    // in the order of all unlocked nodes
    Links of_level;  // in that of its level
    uint32_t generation = 0;
    uint8_t level = 0;
    uint8_t grade = 0;
    bool live = false;
  };
  struct Root {
    std::pair<std::string, uint8_t> name;
    int32_t children = 0;
  };
  struct Level {
    List unlocked;
    int32_t blocks = 0;
  };

  const Entry& at(Node node) const { return entries_[static_cast<size_t>(node)]; }
  Entry& at(Node node) { return entries_[static_cast<size_t>(node)]; }
  std::span<const int32_t> tokens(Node node) const;
  Root& root_at(Node root) { return roots_.at(root); }
  size_t bucket(Node parent, uint64_t hash) const;
  template <Links Entry::*Field>
  void append(List& list, Node node);
  template <Links Entry::*Field>
  void remove(List& list, Node node);
  void add_to_lru(Node node);       // nobody has locked it any more
  void remove_from_lru(Node node);  // somebody has

  const Shape shape_;
  std::vector<Entry> entries_;   // [units]
  std::vector<int32_t> tokens_;  // [units, prefix_block_tokens]
  std::vector<Node> buckets_;    // a power of two of them
  std::vector<Node> free_;       // handles
  std::map<std::pair<std::string, uint8_t>, Node, std::less<>> root_names_;
  std::map<Node, Root> roots_;
  Node next_root_ = -1;
  List recent_;
  std::array<Level, kMaxLevels> levels_;
  int32_t size_ = 0;
  int64_t pages_ = 0;
  int64_t unlocked_pages_ = 0;
  uint64_t version_ = 0;
};

}  // namespace tessera
