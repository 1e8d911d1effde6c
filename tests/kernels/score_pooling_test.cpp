#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "tests/kernels/compression_world.h"

namespace tessera {
namespace {

// The scores of a row before and after a first compression, which keeps all of 200 tokens.
struct PooledScores {
  std::vector<float> before;
  std::vector<float> after;
};
PooledScores pooled_scores(KvPolicy policy) {
  policy.keep_share = 1;
  policy.allocator = KvAllocator::uniform;
  CompressionWorld world({.formats = {policy.high}}, 9);
  PooledScores scores;
  world.open(0, policy, 200);
  world.append(0, 200);
  world.for_each_token_score(
      0, 3, [&](KvTokenScore& token_score) { scores.before.push_back(token_score.score); });
  KvCompression sequence = world.compression(0);
  sequence.pool_scores = true;
  ThreadPool threads(2);
  const Backend& backend = cpu_backend(CpuIsa::scalar);
  std::vector<std::byte> scratch(
      static_cast<size_t>(backend.kv_compress_scratch_bytes(world.pages(), threads.stream())));
  KvCompressed result;
  backend.kv_compress({world.arena().pool(), {&sequence, 1}, {&result, 1}, scratch},
                      threads.stream());
  world.for_each_token_score(
      0, 3, [&](KvTokenScore& token_score) { scores.after.push_back(token_score.score); });
  return scores;
}

TEST(KvCompress, PoolsThePromptsScoresOverNeighbours) {
  const KvPolicy policy = find_kv_preset("snapkv")->policy;
  const PooledScores scores = pooled_scores(policy);
  const int32_t seen = 200 - policy.score_window;
  for (int32_t i = 0; i < 200; ++i) {
    float expected = scores.before[static_cast<size_t>(i)];
    for (int32_t j = std::max(0, i - 3); i < seen && j <= std::min(seen - 1, i + 3); ++j) {
      expected = std::max(expected, scores.before[static_cast<size_t>(j)]);
    }
    EXPECT_EQ(scores.after[static_cast<size_t>(i)], expected) << "token " << i;
  }
}

TEST(KvCompress, PoolsThePromptsScoresByWindow) {
  const KvPolicy policy = find_kv_preset("windowkv")->policy;
  const PooledScores scores = pooled_scores(policy);
  const auto seen = static_cast<size_t>(200 - policy.score_window);
  for (size_t i = 0; i < 200; ++i) {
    double expected = scores.before[i];
    if (i < seen) {
      const size_t first = i / 8 * 8;
      const size_t end = std::min(seen, first + 8);
      const auto* const begin = scores.before.data();
      expected =
          std::accumulate(begin + first, begin + end, 0.0) / static_cast<double>(end - first);
    }
    EXPECT_NEAR(scores.after[i], expected, 1e-6 * expected) << "token " << i;
  }
}

}  // namespace
}  // namespace tessera
