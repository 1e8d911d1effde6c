#include "engine/kv/prefix_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine/tier/block_hash.h"

namespace tessera {
namespace {

using Node = PrefixTree::Node;

constexpr int32_t kTreeBlock = 4;

PrefixTree::Shape shape(int32_t blocks) {
  PrefixTree::Shape shape{.blocks = blocks, .prefix_block_tokens = kTreeBlock};
  shape.prefix_block_pages[0] = 4;
  shape.prefix_block_pages[1] = 2;
  shape.prefix_block_pages[2] = 1;
  return shape;
}

// Returns: the tokens of the block for `digit`. Hashes share a bucket only by chance. Tokens that
// differ in one place therefore test that lookups compare all tokens.
std::vector<int32_t> block(int32_t digit) {
  return {7, 7, digit / 16, digit % 16};
}

Node child(const PrefixTree& tree, Node parent, int32_t digit) {
  return tree.child(parent, block(digit), block_hash(block(digit)));
}
Node insert(PrefixTree& tree, Node parent, int32_t digit) {
  return tree.insert(parent, block(digit), block_hash(block(digit)), 0, 0);
}

TEST(PrefixTree, FindsWhatWasInsertedAndNothingElse) {
  PrefixTree tree(shape(10));
  const Node root = tree.root("", 0);
  const Node first = insert(tree, root, 1);
  const Node second = insert(tree, first, 2);
  EXPECT_EQ(child(tree, root, 1), first);
  EXPECT_EQ(child(tree, first, 2), second);
  EXPECT_EQ(child(tree, root, 2), PrefixTree::kNone);
  EXPECT_EQ(child(tree, first, 1), PrefixTree::kNone);
  EXPECT_EQ(tree.parent(second), first);
  EXPECT_EQ(tree.pages(), 8);
  EXPECT_EQ(tree.unlocked_pages(), 0);
}

TEST(PrefixTree, VerifiesTokensWhereHashesAreEqual) {
  PrefixTree tree(shape(10));
  const Node root = tree.root("", 0);
  const Node one = tree.insert(root, block(1), 42, 0, 0);
  tree.unlock(one);
  EXPECT_EQ(tree.child(root, block(2), 42), PrefixTree::kNone);
  const Node two = tree.insert(root, block(2), 42, 0, 0);
  EXPECT_EQ(tree.child(root, block(1), 42), one);
  EXPECT_EQ(tree.child(root, block(2), 42), two);
}

TEST(PrefixTree, KeepsSaltsAndFormatsApart) {
  PrefixTree tree(shape(10));
  const Node root = tree.root("a", 0);
  const Node node = insert(tree, root, 1);
  EXPECT_EQ(tree.find_root("a", 0), root);
  EXPECT_EQ(tree.find_root("a", 1), PrefixTree::kNone);
  EXPECT_EQ(tree.find_root("b", 0), PrefixTree::kNone);
  EXPECT_EQ(child(tree, tree.root("b", 0), 1), PrefixTree::kNone);
  tree.unlock(node);
  tree.erase(node);
  EXPECT_EQ(tree.find_root("a", 0), PrefixTree::kNone);  // no trace of the salt remains
}

TEST(PrefixTree, EvictsLeavesFirstAndTheLeastRecentlyUsedPathFirst) {
  PrefixTree tree(shape(10));
  const Node root = tree.root("", 0);
  const Node a = insert(tree, root, 1);
  const Node b = insert(tree, a, 2);
  tree.lock(a);
  const Node c = insert(tree, a, 3);  // the lock on `a` moves to `c`
  tree.unlock(b);
  EXPECT_EQ(tree.lru_leaf(), b);
  EXPECT_EQ(tree.unlocked_pages(), 4);  // the lock on `c` covers `a`
  tree.unlock(c);
  EXPECT_EQ(tree.lru_leaf(), b);
  tree.lock(b);
  tree.unlock(b);
  EXPECT_EQ(tree.lru_leaf(), c);
  for (const Node next : {c, b, a}) {
    EXPECT_EQ(tree.lru_leaf(), next);
    tree.erase(next);
  }
  EXPECT_EQ(tree.lru_leaf(), PrefixTree::kNone);
  EXPECT_EQ(tree.size(), 0);
}

TEST(PrefixTree, CountsPagesByLevel) {
  PrefixTree tree(shape(10));
  const Node a = insert(tree, tree.root("", 0), 1);
  const Node b = insert(tree, a, 2);
  tree.unlock(b);
  EXPECT_EQ(tree.lru_of_level(0), b);
  tree.relabel(b, 1, 1);
  EXPECT_EQ(tree.lru_of_level(0), a);
  EXPECT_EQ(tree.lru_of_level(1), b);
  EXPECT_EQ(tree.pages(), 6);
  EXPECT_EQ(tree.unlocked_pages(), 6);
  EXPECT_EQ(tree.pages_of_level(1), 2);
  tree.check_integrity();
}

TEST(PrefixTree, HasShortBlocksBehindAWholeOne) {
  PrefixTree::Shape of = shape(10);
  of.short_block_tokens = 2;
  of.short_block_pages[0] = 2;
  PrefixTree tree(of);
  const Node whole = insert(tree, tree.root("", 0), 1);
  const std::vector<int32_t> rest = {7, 7};  // also how the next whole block begins
  const Node rest_of_path = tree.insert(whole, rest, block_hash(rest), 0, 0);
  EXPECT_EQ(tree.child(whole, rest, block_hash(rest)), rest_of_path);
  EXPECT_EQ(child(tree, whole, 2), PrefixTree::kNone);
  EXPECT_TRUE(tree.is_short(rest_of_path));
  EXPECT_EQ(std::vector(tree.tokens(rest_of_path).begin(), tree.tokens(rest_of_path).end()), rest);
  EXPECT_EQ(tree.pages(), 4 + 2);
  EXPECT_EQ(tree.pages_of_level(0), 4 + 2);
  tree.unlock(rest_of_path);
  EXPECT_EQ(tree.unlocked_pages(), 4 + 2);
  EXPECT_EQ(tree.lru_leaf(), rest_of_path);
  tree.check_integrity();
  tree.erase(rest_of_path);
  EXPECT_EQ(tree.pages(), 4);
  tree.check_integrity();
}

// ---- against a map

// The same tree as a map from paths to the expected state of their nodes.
class Model {
 public:
  using Path = std::vector<int32_t>;  // root, then digits
  struct Item {
    Node node = 0;
    int locks = 0;
    uint8_t level = 0;
    int64_t since = 0;  // time at which it was unlocked
  };

  explicit Model(uint64_t seed) : random_(seed) {}

  void run(int64_t operations) {
    for (int64_t i = 0; i < operations && !testing::Test::HasFailure(); ++i) {
      switch (pick(16)) {
        case 0:
        case 1:
        case 2:
        case 3:
        case 4:
          begin();
          break;
        case 5:
        case 6:
        case 7:
        case 8:
          extend();
          break;
        case 9:
          fork();
          break;
        case 10:
          hand_over();
          break;
        case 11:
          demote();
          break;
        case 12:
          evict();
          break;
        default:
          end();  // a sequence ends, or is aborted in the middle of its prompt
      }
      if (i % 1024 == 0) {
        check_all();
      }
    }
    while (!holders_.empty()) {
      end();
    }
    while (!items_.empty() && !testing::Test::HasFailure()) {
      evict();
    }
    EXPECT_EQ(tree_.size(), 0);
    EXPECT_EQ(tree_.pages(), 0);
  }

 private:
  static constexpr int32_t kBlocks = 120;

  int32_t pick(int32_t n) { return static_cast<int32_t>(random_() % static_cast<uint32_t>(n)); }

  Node root(int32_t name) {
    return tree_.root(name / 2 == 0 ? "" : "salt", static_cast<uint8_t>(name % 2));
  }

  Path random_path() {
    Path path{pick(3)};
    const int32_t length = 1 + pick(8);
    for (int32_t i = 0; i < length; ++i) {
      path.push_back(pick(3) == 0 ? pick(40) : pick(2));
    }
    return path;
  }

  // A sequence locks the longest match of its prompt.
  void begin() {
    if (holders_.size() >= 12) {
      return;
    }
    const Path wanted = random_path();
    Path path{wanted[0]};
    Node node =
        tree_.find_root(wanted[0] / 2 == 0 ? "" : "salt", static_cast<uint8_t>(wanted[0] % 2));
    for (size_t i = 1; i < wanted.size() && node != PrefixTree::kNone; ++i) {
      const Node next = child(tree_, node, wanted[i]);
      Path longer = path;
      longer.push_back(wanted[i]);
      const auto known = items_.find(longer);
      ASSERT_EQ(next != PrefixTree::kNone, known != items_.end());
      if (next == PrefixTree::kNone) {
        break;
      }
      ASSERT_EQ(next, known->second.node);
      node = next;
      path = std::move(longer);
    }
    if (path.size() > 1) {
      tree_.lock(items_.at(path).node);
      lock(path);
    }
    holders_.push_back(path);
  }

  // Inserts the next block of a sequence, or follows it if it is cached.
  void extend() {
    if (holders_.empty()) {
      return;
    }
    Path& path = holders_[static_cast<size_t>(pick(static_cast<int32_t>(holders_.size())))];
    const int32_t digit = pick(3) == 0 ? pick(40) : pick(2);
    const Node parent = path.size() == 1 ? root(path[0]) : items_.at(path).node;
    path.push_back(digit);
    if (const auto known = items_.find(path); known != items_.end()) {
      tree_.descend(known->second.node);
      ++known->second.locks;
      return;
    }
    if (tree_.size() == kBlocks) {
      path.pop_back();
      evict();
      return;
    }
    items_[path] = {insert(tree_, parent, digit), 1, 0, 0};
  }

  void fork() {
    if (holders_.empty() || holders_.size() >= 12) {
      return;
    }
    const Path path = holders_[static_cast<size_t>(pick(static_cast<int32_t>(holders_.size())))];
    if (path.size() > 1) {
      tree_.lock(items_.at(path).node);
      lock(path);
    }
    holders_.push_back(path);
  }

  // Removes from the tree a node that only one sequence uses.
  void hand_over() {
    for (Path& path : holders_) {
      if (path.size() > 1 && items_.at(path).locks == 1 &&
          tree_.children(items_.at(path).node) == 0) {
        const Node node = items_.at(path).node;
        const Node up = tree_.retreat(node);
        items_.erase(path);
        path.pop_back();
        ASSERT_EQ(up < 0, path.size() == 1);
        tree_.erase(node);
        return;
      }
    }
  }

  void demote() {
    const Node node = tree_.lru_of_level(0);
    const auto lru_leaf = find_lru([](const Item& item) { return item.level == 0; });
    ASSERT_EQ(node != PrefixTree::kNone, lru_leaf != items_.end());
    if (node != PrefixTree::kNone) {
      ASSERT_EQ(node, lru_leaf->second.node);
      tree_.relabel(node, 1, 1);
      lru_leaf->second.level = 1;
    }
  }

  void evict() {
    const Node node = tree_.lru_leaf();
    const auto lru_leaf = find_lru([](const Item&) { return true; });
    ASSERT_EQ(node != PrefixTree::kNone, lru_leaf != items_.end());
    if (node != PrefixTree::kNone) {
      ASSERT_EQ(node, lru_leaf->second.node);
      ASSERT_EQ(tree_.children(node), 0);
      tree_.erase(node);
      items_.erase(lru_leaf);
    }
  }

  void end() {
    if (holders_.empty()) {
      return;
    }
    const auto holder = holders_.begin() + pick(static_cast<int32_t>(holders_.size()));
    Path path = *holder;
    holders_.erase(holder);
    if (path.size() > 1) {
      tree_.unlock(items_.at(path).node);
    }
    for (; path.size() > 1; path.pop_back()) {
      Item& item = items_.at(path);
      --item.locks;
      item.since = item.locks == 0 ? ++clock_ : item.since;
    }
  }

  void lock(Path path) {
    for (; path.size() > 1; path.pop_back()) {
      ++items_.at(path).locks;
    }
  }

  template <class Predicate>
  std::map<Path, Item>::iterator find_lru(Predicate&& wanted) {
    auto lru_leaf = items_.end();
    for (auto item = items_.begin(); item != items_.end(); ++item) {
      if (item->second.locks == 0 && wanted(item->second) &&
          (lru_leaf == items_.end() || item->second.since < lru_leaf->second.since)) {
        lru_leaf = item;
      }
    }
    return lru_leaf;
  }

  void check_all() {
    tree_.check_integrity();
    int64_t pages = 0;
    int64_t unlocked = 0;
    for (const auto& [path, item] : items_) {
      ASSERT_EQ(tree_.locks(item.node), item.locks);
      ASSERT_EQ(tree_.level(item.node), item.level);
      pages += item.level == 0 ? 4 : 2;
      unlocked += item.locks > 0 ? 0 : item.level == 0 ? 4 : 2;
    }
    ASSERT_EQ(tree_.pages(), pages);
    ASSERT_EQ(tree_.unlocked_pages(), unlocked);
  }

  std::mt19937_64 random_;
  PrefixTree tree_{shape(kBlocks)};
  std::map<Path, Item> items_;
  std::vector<Path> holders_;  // path that each sequence has locked
  int64_t clock_ = 0;
};

// TESSERA_TREE_OPERATIONS sets the number of operations.
TEST(PrefixTree, IsAMapFromPathsThroughRandomOperations) {
  const char* setting = std::getenv("TESSERA_TREE_OPERATIONS");
  const int64_t operations = setting != nullptr ? std::stoll(setting) : 100'000;
  for (uint64_t seed = 1; seed <= 4 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Model(seed).run(operations / 4);
  }
}

}  // namespace
}  // namespace tessera
