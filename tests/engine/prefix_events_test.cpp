#include "engine/tier/prefix_events.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <thread>

#include "tests/engine/engine_fixture.h"

namespace tessera {
namespace {

constexpr int32_t kBlock = 4;

std::vector<int32_t> tokens_of(int32_t block) {
  return {block, block + 1, block + 2, -block};
}

// Returns: the events until the journal is closed.
PrefixEvents::Batch read_all(PrefixEvents& events) {
  events.close();
  PrefixEvents::Batch batch;
  events.take(batch);
  return batch;
}

TEST(PrefixEvents, NameEqualPathsEqually) {
  std::vector<uint64_t> names[2];
  for (auto& found : names) {
    PrefixEvents events;
    events.begin(8, kBlock);
    const auto shift = static_cast<int32_t>(&found - names);  // other handles
    events.stored(shift, -1, tokens_of(1));
    events.stored(2 + shift, shift, tokens_of(2));
    events.stored(4 + shift, 2 + shift, tokens_of(1));
    for (const PrefixEvents::Event& event : read_all(events).events) {
      found.push_back(event.block);
    }
  }
  EXPECT_EQ(names[0], names[1]);
  EXPECT_EQ(std::set(names[0].begin(), names[0].end()).size(), 3U)
      << "equal tokens behind other tokens are another block";
}

TEST(PrefixEvents, HaveParentsAndTokens) {
  PrefixEvents events;
  events.begin(8, kBlock);
  events.stored(3, -1, tokens_of(1));
  events.stored(5, 3, tokens_of(2));
  events.removed(5);
  const PrefixEvents::Batch batch = read_all(events);
  ASSERT_EQ(batch.events.size(), 3U);
  EXPECT_EQ(batch.events[0].parent, 0U);
  EXPECT_EQ(batch.events[1].parent, batch.events[0].block);
  EXPECT_FALSE(batch.events[2].stored);
  EXPECT_EQ(batch.events[2].block, batch.events[1].block);
  EXPECT_EQ(batch.tokens, (std::vector<int32_t>{1, 2, 3, -1, 2, 3, 4, -2}));
}

TEST(PrefixEvents, LeaveOutBlocksWithoutANameAndThoseBehindThem) {
  PrefixEvents events;
  events.begin(8, kBlock);
  events.stored_unnamed(0);
  events.stored(1, 0, tokens_of(1));
  events.removed(1);
  events.removed(0);
  EXPECT_TRUE(read_all(events).events.empty());
}

// The blocks that a router believes in: those that were stored and not removed.
struct Router {
  std::set<uint64_t> blocks;

  void read(const PrefixEvents::Batch& batch) {
    for (const PrefixEvents::Event& event : batch.events) {
      if (event.stored) {
        EXPECT_TRUE(event.parent == 0 || blocks.contains(event.parent));
        EXPECT_TRUE(blocks.insert(event.block).second);
      } else {
        EXPECT_EQ(blocks.erase(event.block), 1U);
      }
    }
  }
};

// Random insertions and removals of leaves, with a reader that is late most of the time. A router
// never has a block that is not in the tree, and misses some only if some were lost.
TEST(PrefixEvents, ARouterNeverBelievesInABlockThatHasGone) {
  constexpr int32_t kBlocks = 100;
  constexpr int kChanges = 160'000;
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  PrefixEvents events;
  events.begin(kBlocks + 1, kBlock);
  std::map<int32_t, int32_t> parents;  // of the nodes in the tree
  std::map<int32_t, int32_t> children;
  std::vector<int32_t> free;
  for (int32_t node = 0; node < kBlocks; ++node) {
    free.push_back(node);
  }
  const auto any_node = [&] {
    return std::next(parents.begin(), static_cast<std::ptrdiff_t>(random() % parents.size()))
        ->first;
  };
  Router router;
  PrefixEvents::Batch batch;
  int64_t lost = 0;
  int32_t serial = 0;
  for (int change = 0; change < kChanges; ++change) {
    if (!free.empty() && (parents.empty() || random() % 2 == 0)) {
      const int32_t parent = parents.empty() || random() % 8 == 0 ? -1 : any_node();
      const int32_t node = free.back();
      free.pop_back();
      parents[node] = parent;
      ++children[parent];
      events.stored(node, parent, tokens_of(++serial));
    } else if (const int32_t node = any_node(); children[node] == 0) {
      --children[parents[node]];
      parents.erase(node);
      free.push_back(node);
      events.removed(node);
    }
    if (change % 40'000 == 0) {
      ASSERT_TRUE(events.take(batch));
      router.read(batch);
      lost += batch.lost;
    }
  }
  events.close();
  while (events.take(batch)) {
    router.read(batch);
    lost += batch.lost;
  }
  EXPECT_LE(router.blocks.size(), parents.size());
  EXPECT_GT(lost, 0) << "the reader was not late enough";
  for (const auto& [node, parent] : parents) {
    events.removed(node);
  }
  events.take(batch);
  router.read(batch);
  EXPECT_TRUE(router.blocks.empty());
}

TEST(PrefixEvents, AReaderWaitsForEventsAndForTheEnd) {
  PrefixEvents events;
  events.begin(4, kBlock);
  Router router;
  std::thread reader([&] {
    PrefixEvents::Batch batch;
    while (events.take(batch)) {
      router.read(batch);
    }
  });
  for (int i = 0; i < 1000; ++i) {
    events.stored(0, -1, tokens_of(i));
    events.removed(0);
  }
  events.stored(1, -1, tokens_of(7));
  events.close();
  reader.join();
  EXPECT_EQ(router.blocks.size(), 1U);
}

}  // namespace
}  // namespace tessera
