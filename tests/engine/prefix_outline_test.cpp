#include "engine/kv/prefix_outline.h"

#include <algorithm>
#include <set>

#include "engine/tier/block_hash.h"
#include "tests/engine/engine_fixture.h"

namespace tessera {
namespace {

using Node = PrefixTree::Node;

constexpr int32_t kOutlineBlock = 2;

PrefixTree tree_of(int32_t blocks) {
  PrefixTree::Shape shape{.blocks = blocks, .prefix_block_tokens = kOutlineBlock};
  shape.prefix_block_pages[0] = 1;
  return PrefixTree(shape);
}

// Inserts a path of `length` blocks that begin with the number `path`. It stays locked.
// Returns: its last block.
Node insert_path(PrefixTree& tree, std::string_view salt, int32_t path, int32_t length) {
  Node node = tree.root(salt, 0);
  for (int32_t i = 0; i < length; ++i) {
    const std::vector<int32_t> tokens = {path, i};
    node = tree.insert(node, tokens, block_hash(tokens), 0, 0);
  }
  return node;
}

// Every outline: parents come first and are the tree's, and no block is there twice.
void check(const PrefixOutline& outline, const PrefixTree& tree) {
  std::set<int32_t> ids;
  for (size_t i = 0; i < outline.blocks.size(); ++i) {
    const PrefixOutline::Block& block = outline.blocks[i];
    EXPECT_TRUE(ids.insert(block.id).second) << block.id;
    ASSERT_LT(block.parent, static_cast<int32_t>(i));
    const Node parent = tree.parent(block.id);
    EXPECT_EQ(parent < 0, block.parent < 0);
    EXPECT_TRUE(parent < 0 || outline.blocks[static_cast<size_t>(block.parent)].id == parent);
    EXPECT_EQ(block.locked, tree.locks(block.id) > 0);
  }
  EXPECT_EQ(std::ssize(outline.blocks) + outline.omitted, tree.size());
}

TEST(PrefixOutline, HasLockedBlocksFirstAndMarksSaltsWithoutTellingThem) {
  PrefixTree tree = tree_of(16);
  const Node idle = insert_path(tree, "", 1, 3);
  tree.unlock(idle);
  const Node used = insert_path(tree, "secret", 2, 2);
  PrefixOutliner outliner(tree, 4);
  PrefixOutline outline;
  outliner.begin(outline);
  outliner.add_path(used);
  outliner.add_path(tree.parent(used));  // a path that is there already
  outliner.finish();
  check(outline, tree);
  ASSERT_EQ(outline.blocks.size(), 5u);
  EXPECT_EQ(outline.blocks[1].id, used);
  EXPECT_EQ(outline.blocks[1].salt, PrefixOutline::salt_mark("secret"));
  EXPECT_NE(PrefixOutline::salt_mark("secret"), PrefixOutline::salt_mark("other"));
  EXPECT_EQ(outline.blocks[2].salt, PrefixOutline::salt_mark(""));
  EXPECT_FALSE(outline.blocks[4].locked);
}

TEST(PrefixOutline, KeepsTheMostRecentlyUsedOfALargeTree) {
  constexpr int32_t kPaths = 300;
  constexpr int32_t kLength = 10;
  PrefixTree tree = tree_of(kPaths * kLength);
  std::vector<Node> ends;
  for (int32_t path = 0; path < kPaths; ++path) {
    ends.push_back(insert_path(tree, "", path, kLength));
  }
  const Node locked = ends.front();
  std::for_each(ends.begin() + 1, ends.end(), [&](Node end) { tree.unlock(end); });
  PrefixOutliner outliner(tree, kLength);
  PrefixOutline outline;
  for (int round = 0; round < 2; ++round) {  // nothing of an earlier outline is left
    outliner.begin(outline);
    outliner.add_path(locked);
    outliner.finish();
    check(outline, tree);
    EXPECT_EQ(std::ssize(outline.blocks), PrefixOutline::kMaxBlocks);
    EXPECT_EQ(outline.omitted, kPaths * kLength - PrefixOutline::kMaxBlocks);
    std::set<int32_t> ids;
    for (const PrefixOutline::Block& block : outline.blocks) {
      ids.insert(block.id);
    }
    EXPECT_TRUE(ids.contains(locked));
    EXPECT_TRUE(ids.contains(ends.back()));
    EXPECT_FALSE(ids.contains(ends[1])) << "the least recently used";
  }
}

TEST(PrefixOutline, KeepsWholeBeginningsIfMoreBlocksAreLockedThanFit) {
  constexpr int32_t kLength = 700;
  PrefixTree tree = tree_of(2 * kLength);
  const Node first = insert_path(tree, "", 1, kLength);
  const Node second = insert_path(tree, "", 2, kLength);
  PrefixOutliner outliner(tree, kLength);
  PrefixOutline outline;
  outliner.begin(outline);
  outliner.add_path(first);
  outliner.add_path(second);
  outliner.finish();
  check(outline, tree);
  EXPECT_EQ(std::ssize(outline.blocks), PrefixOutline::kMaxBlocks);
}

TEST(EngineOutline, ShowsTheTreeOfASleepingEngineAndOfAnObservedStep) {
  EngineOptions options;
  options.context = 512;
  options.max_sequences = 2;
  FakeEngine fake(options);
  fake.submit(request_of(prompt_of(300), 4));
  fake.step_until_idle();
  const PrefixOutline asleep = fake.engine->outline();
  EXPECT_GT(asleep.blocks.size(), 3u);
  EXPECT_EQ(std::ssize(asleep.blocks), fake.engine->stats().cache.blocks);
  EXPECT_TRUE(std::none_of(asleep.blocks.begin(), asleep.blocks.end(),
                           [](const auto& block) { return block.locked; }));
  fake.submit(request_of(prompt_of(300), 50));
  fake.engine->step();
  fake.engine->outline();  // asks for the next step's
  fake.engine->step();
  const PrefixOutline running = fake.engine->outline();
  EXPECT_TRUE(std::any_of(running.blocks.begin(), running.blocks.end(),
                          [](const auto& block) { return block.locked; }));
  fake.step_until_idle();
  fake.engine->flush_cache();
  fake.step_until_idle();
  EXPECT_TRUE(fake.engine->outline().blocks.empty());
}

}  // namespace
}  // namespace tessera
