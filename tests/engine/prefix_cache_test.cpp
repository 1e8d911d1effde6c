// Sequences that share pages, with real page contents. Each sequence must read the data that it
// stored, after any sharing, demotion, eviction, hand-over or fork.

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/engine/prefix_world.h"

namespace tessera {
namespace {

// TESSERA_PREFIX_OPERATIONS sets the number of operations.
void run(const PrefixSetup& setup, bool demotes) {
  const char* setting = std::getenv("TESSERA_PREFIX_OPERATIONS");
  const int64_t operations = setting != nullptr ? std::stoll(setting) : 4'000;
  int64_t hits = 0;
  PrefixCacheStats sum;
  for (uint64_t seed = 1; seed <= 4 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    PrefixWorld world(setup, seed);
    world.run(operations / 4);
    hits += world.hits();
    sum.evicted_blocks += world.stats().evicted_blocks;
    sum.demoted_blocks += world.stats().demoted_blocks;
    sum.handed_over_blocks += world.stats().handed_over_blocks;
  }
  EXPECT_GT(hits, 0);
  EXPECT_GT(sum.evicted_blocks, 0);
  EXPECT_GT(sum.handed_over_blocks, 0);
  EXPECT_EQ(sum.demoted_blocks > 0, demotes);
}

TEST(PrefixCache, SharesFloatsThroughRandomOperations) {
  run({kKvPresetF16, {}}, false);
}
TEST(PrefixCache, SharesCodesThroughRandomOperations) {
  run({*find_kv_preset("k8v4"), {}}, false);
}
TEST(PrefixCache, DemotesOnceThroughRandomOperations) {
  run({*find_kv_preset("k8v4"), {kKvK4V2}}, true);
}
TEST(PrefixCache, DemotesStepByStepThroughRandomOperations) {
  run({kKvPresetF16, {kKvK8V4}}, true);
}

TEST(PrefixCache, KeepsWhatWindowsSeeThroughRandomOperations) {
  for (const int32_t window : {1, 50, 64, 130, 300}) {
    SCOPED_TRACE(testing::Message() << "a window of " << window);
    run({kKvPresetF16, {}, window}, false);
    run({*find_kv_preset("k8v4"), {}, window}, false);
    run({*find_kv_preset("k8v4"), {kKvK4V2}, window}, true);
  }
}

TEST(PrefixCache, RefusesALadderThatMakesNoSense) {
  ThreadPool threads(1);
  KvCacheOptions options{.preset = kKvPresetF16,
                         .prefix_cache = false,
                         .ladder = {kKvK4V2},
                         .layers = 1,
                         .kv_heads = 1,
                         .head_dim = 16,
                         .query_heads = 1,
                         .slots = 1,
                         .context = 128};
  const auto refusal = [&] {
    return std::string(
        KvCache::create(options, cpu_backend(CpuIsa::scalar), threads.stream()).status().message());
  };
  EXPECT_NE(refusal().find("without a prefix cache"), std::string::npos);
  options.prefix_cache = true;
  options.windows.assign(static_cast<size_t>(options.layers), 100);
  EXPECT_NE(refusal().find("sliding-window"), std::string::npos);
  options.windows.clear();
  options.ladder = {kKvF16};
  EXPECT_NE(refusal().find("only to fp8, formats of codes"), std::string::npos);
  options.ladder = {kKvK4V2};
  EXPECT_EQ(refusal(), "");
}

}  // namespace
}  // namespace tessera
