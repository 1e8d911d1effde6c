#include "engine/kv/seen_paths.h"

#include <gtest/gtest.h>

#include <random>

namespace tessera {
namespace {

std::vector<uint64_t> paths_of(uint64_t seed, size_t count) {
  std::mt19937_64 random(seed);
  std::vector<uint64_t> paths(count);
  for (uint64_t& path : paths) {
    path = random();
  }
  return paths;
}

TEST(SeenPaths, KnowsWhatItHasSeen) {
  SeenPaths seen(1000);
  const std::vector<uint64_t> prompt = paths_of(1, 20);
  EXPECT_EQ(seen.record(std::span(prompt).first(12)), 0);
  EXPECT_EQ(seen.record(prompt), 12);
  EXPECT_EQ(seen.record(prompt), 20);
  EXPECT_EQ(seen.record({}), 0);
}

// The path of a block includes all blocks before it, so the last path stands for all of them.
TEST(SeenPaths, TakesTheLastPathForThoseBeforeIt) {
  SeenPaths seen(1000);
  const std::vector<uint64_t> prompt = paths_of(2, 20);
  seen.record(std::span(prompt).subspan(7, 1));
  EXPECT_EQ(seen.record(prompt), 8);
}

TEST(SeenPaths, ForgetsWhatWasSeenLongestAgo) {
  SeenPaths seen(1000);
  const std::vector<uint64_t> again = paths_of(3, 10);
  const std::vector<uint64_t> once = paths_of(4, 10);
  seen.record(again);
  seen.record(once);
  for (uint64_t seed = 100; seed < 200; ++seed) {
    seen.record(paths_of(seed, 100));
    ASSERT_EQ(seen.record(again), 10) << "after " << seed - 99 << " prompts of 100 blocks";
  }
  EXPECT_EQ(seen.record(once), 0);
}

TEST(SeenPaths, KeepsAtLeastHalfOfWhatFits) {
  SeenPaths seen(4096);
  const std::vector<uint64_t> paths = paths_of(5, 2048);
  for (const uint64_t path : paths) {
    seen.record(std::span(&path, 1));
  }
  int32_t known = 0;
  for (const uint64_t path : paths) {
    known += seen.record(std::span(&path, 1));
  }
  EXPECT_GT(known, 1900);
}

TEST(SeenPaths, ForgetsAllWhenTold) {
  SeenPaths seen(1000);
  const std::vector<uint64_t> prompt = paths_of(6, 20);
  seen.record(prompt);
  seen.forget();
  EXPECT_EQ(seen.record(prompt), 0);
}

}  // namespace
}  // namespace tessera
