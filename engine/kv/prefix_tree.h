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

// A radix tree over token ids. Each edge is one prefix block, a run of prefix_block_tokens tokens,
// or a short block, a run of short_block_tokens. Behind a short block there are short blocks alone.
// A node is the block behind the blocks of its ancestors; its id is the block's handle
// (kernels/kv/kv_pool.h). Nodes are never merged or split, so locks, eviction, demotion and
// hand-over are exact to one block. A prompt of 4096 tokens is a walk of 64 nodes if a block has 64
// tokens.
// Each step of a walk is one lookup in a hash table that all nodes share, and one exact comparison
// of tokens. So its cost does not depend on the number of cached sequences.
//
// Pure host code. The tree counts the pages of blocks and holds no page ids. The level of a node is
// the coarseness of its format, 0 for the most precise. The grade of a node is the coarsest level
// that was read while the block was computed; it is never below the level. A request limits the
// grade that it accepts.
//
// A running sequence locks its path; a lock on a node covers its ancestors. Unlocked nodes form an
// LRU list in the order of their release. The deepest node of a path comes first, so the head of
// the list is always a leaf. All operations take constant time for each node. Memory is allocated
// at the start, except for the names of roots.
//
// A block's pages in layers with a window are its *windows*. A continuation reads those of the last
// blocks of its path only. So they have locks of their own, and a list of those that are unlocked,
// also in locked nodes. A node may lose its windows and stay.
class PrefixTree {
 public:
  using Node = int32_t;
  static constexpr Node kNone = INT32_MIN;
  static constexpr int kMaxLevels = 16;

  struct Shape {
    int32_t blocks = 0;  // maximum number of nodes
    int32_t prefix_block_tokens = 0;
    // Pages of one block of each level, over all layers and KV heads.
    std::array<int64_t, kMaxLevels> prefix_block_pages = {};
    int32_t short_block_tokens = 0;  // less than prefix_block_tokens; 0: no short blocks
    std::array<int64_t, kMaxLevels> short_block_pages = {};
    // Pages of the windows of a whole and of a short block, which keep the level that the block had
    // when it was inserted. The pages above are without them.
    std::array<int64_t, kMaxLevels> windows_pages = {};
    std::array<int64_t, kMaxLevels> short_windows_pages = {};
  };
  explicit PrefixTree(const Shape& shape);

  // Bytes of the tree for each block.
  static int64_t block_bytes(int32_t prefix_block_tokens);

  // Returns: the root of all paths stored under this salt in this format, or kNone. Roots have
  // negative ids.
  Node find_root(std::string_view salt, uint8_t format) const;
  // The same, but creates a missing root. The root of a salt is removed with its last child; roots
  // without a salt stay.
  Node root(std::string_view salt, uint8_t format);

  // Returns: the child of `parent` with exactly these tokens, or kNone.
  // Requires: `hash` is their block_hash().
  Node child(Node parent, std::span<const int32_t> tokens, uint64_t hash) const;
  // Adds a child of `parent`. The caller's lock on `parent` moves to the new node.
  // Requires: no such child; the caller has a lock on `parent`, or it is a root; a free handle;
  // `tokens` are those of a whole or of a short block.
  Node insert(Node parent, std::span<const int32_t> tokens, uint64_t hash, uint8_t level,
              uint8_t grade);

  void lock(Node node);      // locks the node and its ancestors; no effect on a root
  void unlock(Node node);    // reverses one lock()
  void descend(Node child);  // moves a lock from its parent to `child`
  Node retreat(Node node);   // moves a lock from `node` to its parent, which is returned

  // The LRU leaf, and the least recently used unlocked node of a level. kNone if there is none.
  Node lru_leaf() const { return recent_.first; }
  Node lru_of_level(uint8_t level) const { return levels_[level].unlocked.first; }
  // The unlocked node of the same level that was used after an unlocked node; or kNone.
  Node more_recent_of_level(Node node) const { return at(node).of_level.next; }
  // The most recently used unlocked node, and the one used before an unlocked node; or kNone.
  Node mru() const { return recent_.last; }
  Node less_recent(Node node) const { return at(node).recent.previous; }

  // ---- windows. A new node has none.
  bool has_windows(Node node) const { return at(node).has_windows; }
  // Adds the windows of a node, and locks them.
  // Requires: the node has none.
  void add_windows(Node node);
  // Have no effect on a node without windows.
  void lock_windows(Node node);
  void unlock_windows(Node node);  // reverses one lock_windows() or add_windows()
  bool windows_locked(Node node) const { return at(node).window_locks > 0; }
  // Removes a node's unlocked windows, if it has any. With `outdate`, version() changes.
  void drop_windows(Node node, bool outdate);
  // The node whose windows were unlocked first; or kNone.
  Node lru_windows() const { return windows_.first; }
  // Returns: true if the node's windows were unlocked before `leaf` was.
  // Requires: both are unlocked.
  bool windows_before(Node node, Node leaf) const { return at(node).windows_used < at(leaf).used; }
  int64_t windows_pages_of(Node node) const {
    return !at(node).has_windows ? 0 : windows_pages_at(node);
  }
  int64_t windows_pages(uint8_t level) const { return shape_.windows_pages[level]; }

  // Removes a node; its handle is free.
  // Requires: an unlocked leaf.
  void erase(Node leaf);
  void relabel(Node node, uint8_t level, uint8_t grade);
  // The node becomes the least recently used one.
  // Requires: an unlocked node; its children are made so next.
  void make_oldest(Node node);

  Node parent(Node node) const { return at(node).parent; }  // negative: a root
  std::span<const int32_t> tokens(Node node) const;         // of its block
  std::string_view salt(Node root) const { return roots_.at(root).name.first; }
  uint8_t format(Node root) const { return roots_.at(root).name.second; }
  uint8_t level(Node node) const { return at(node).level; }
  uint8_t grade(Node node) const { return at(node).grade; }
  int32_t locks(Node node) const { return at(node).locks; }
  bool is_unlocked(Node node) const { return at(node).live && at(node).locks == 0; }
  int32_t children(Node node) const { return at(node).children; }
  bool is_short(Node node) const { return at(node).is_short; }
  int64_t whole_pages_of(Node node) const { return pages_of(node, at(node).level); }
  int64_t pages_of(Node node) const { return whole_pages_of(node) + windows_pages_of(node); }

  int32_t size() const { return size_; }  // nodes, without roots
  bool full() const { return free_.empty(); }
  int64_t pages() const { return pages_; }                    // of all nodes
  int64_t unlocked_pages() const { return unlocked_pages_; }  // of all unlocked nodes
  int64_t prefix_block_pages(uint8_t level) const { return shape_.prefix_block_pages[level]; }
  int64_t short_block_pages(uint8_t level) const { return shape_.short_block_pages[level]; }
  int32_t prefix_block_tokens() const { return shape_.prefix_block_tokens; }
  int32_t short_block_tokens() const { return shape_.short_block_tokens; }
  int64_t pages_of_level(uint8_t level) const { return levels_[level].pages; }
  // Changes with erase(), relabel() and drop_windows(), which may end an earlier walk elsewhere.
  // insert() does not change it.
  uint64_t version() const { return version_; }

  // Aborts unless counts, links and locks are consistent. For tests.
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
    Links recent;               // in the LRU list of all unlocked nodes
    Links of_level;             // in the LRU list of the node's level
    Links windows;              // in the list of unlocked windows
    uint64_t used = 0;          // when the last lock was released, in the order of these
    uint64_t windows_used = 0;  // the same for the windows
    int32_t window_locks = 0;
    uint8_t windows_level = 0;
    bool has_windows = false;
    uint8_t level = 0;
    uint8_t grade = 0;
    bool is_short = false;
    bool live = false;
  };
  struct Root {
    std::pair<std::string, uint8_t> name;
    int32_t children = 0;
  };
  struct Level {
    List unlocked;
    int64_t pages = 0;
  };

  const Entry& at(Node node) const { return entries_[static_cast<size_t>(node)]; }
  Entry& at(Node node) { return entries_[static_cast<size_t>(node)]; }
  int64_t pages_of(Node node, uint8_t level) const {
    return at(node).is_short ? shape_.short_block_pages[level] : shape_.prefix_block_pages[level];
  }
  int64_t windows_pages_at(Node node) const {
    const Entry& entry = at(node);
    return entry.is_short ? shape_.short_windows_pages[entry.windows_level]
                          : shape_.windows_pages[entry.windows_level];
  }
  Root& root_at(Node root) { return roots_.at(root); }
  size_t bucket(Node parent, uint64_t hash) const;
  template <Links Entry::*Field>
  void append(List& list, Node node);
  template <Links Entry::*Field>
  void prepend(List& list, Node node);
  template <Links Entry::*Field>
  void remove(List& list, Node node);
  void add_to_lru(Node node);       // when its last lock is released
  void remove_from_lru(Node node);  // when its first lock is taken

  const Shape shape_;
  std::vector<Entry> entries_;   // [blocks]
  std::vector<int32_t> tokens_;  // [blocks, prefix_block_tokens]
  std::vector<Node> buckets_;    // size is a power of two
  std::vector<Node> free_;       // free handles
  std::map<std::pair<std::string, uint8_t>, Node, std::less<>> root_names_;
  std::map<Node, Root> roots_;
  Node next_root_ = -1;
  List recent_;
  List windows_;
  uint64_t time_ = 0;  // of the last release
  std::array<Level, kMaxLevels> levels_;
  int32_t size_ = 0;
  int64_t pages_ = 0;
  int64_t unlocked_pages_ = 0;
  uint64_t version_ = 0;
};

}  // namespace tessera
