// Replays of traces through the prefix cache and its tiers.

#include <gtest/gtest.h>

#include "eval/trace/replay.h"

namespace tessera {
namespace {

constexpr int32_t kHeadDim = 16;
constexpr int64_t kHuge = int64_t{1} << 30;

std::vector<TraceRequest> short_conversations() {
  TraceStatistics statistics;
  statistics.requests = 400;
  statistics.max_blocks = 12;
  return generate_trace(statistics, 1);
}

ReplayResult result_of(const ReplayBytes& bytes) {
  const ReplaySubject subject{"f16", *find_kv_preset("f16"), {}};
  const auto result = replay(short_conversations(), subject, kHeadDim, bytes);
  EXPECT_TRUE(result.ok()) << result.status();
  return *result;
}

// Bytes of so many thousand tokens.
constexpr int64_t thousands(int64_t count) {
  return count * 1000 * 2 * 2 * kHeadDim;
}

TEST(TraceReplay, FindsInLargeTiersAllThatALargeCacheFinds) {
  const ReplayResult large = result_of({.cache = kHuge});
  const ReplayResult small = result_of({.cache = thousands(20)});
  ASSERT_LT(small.hit_tokens, large.hit_tokens);
  const ReplayResult host = result_of({.cache = thousands(20), .host = kHuge});
  EXPECT_EQ(host.hit_tokens, large.hit_tokens);
  EXPECT_EQ(host.disk_tokens, 0);
  EXPECT_GT(host.host_tokens, 0);
  const ReplayResult disk = result_of({.cache = thousands(20), .disk = kHuge});
  EXPECT_EQ(disk.hit_tokens, large.hit_tokens);
  EXPECT_EQ(disk.host_tokens, 0);
  EXPECT_GT(disk.disk_tokens, 0);
}

TEST(TraceReplay, FindsInASmallTierWhatWasUsedLast) {
  const ReplayResult small = result_of({.cache = thousands(20)});
  const ReplayResult larger = result_of({.cache = thousands(20), .host = thousands(100)});
  const ReplayResult both =
      result_of({.cache = thousands(20), .host = thousands(100), .disk = thousands(400)});
  EXPECT_GT(larger.hit_tokens, small.hit_tokens);
  EXPECT_GT(both.hit_tokens, larger.hit_tokens);
  EXPECT_GT(both.host_tokens, 0);
  EXPECT_GT(both.disk_tokens, 0);
}

}  // namespace
}  // namespace tessera
