#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/kernels/compression_world.h"
#include "tests/kernels/policies.h"

namespace tessera {
namespace {

// Compresses a sequence for the first time, behind its prompt.
void compress_prompt(CompressionWorld& world, int32_t slot) {
  KvCompression sequence = world.compression(slot);
  sequence.pool_scores = true;
  ThreadPool threads(2);
  const Backend& backend = cpu_backend(CpuIsa::scalar);
  std::vector<std::byte> scratch(
      static_cast<size_t>(backend.kv_compress_scratch_bytes(world.pages(), threads.stream())));
  KvCompressed result;
  backend.kv_compress({world.arena().pool(), {&sequence, 1}, {&result, 1}, scratch},
                      threads.stream());
}

std::vector<float> scores_of(CompressionWorld& world, int32_t row) {
  std::vector<float> scores;
  world.for_each_token_score(
      0, row, [&](KvTokenScore& token_score) { scores.push_back(token_score.score); });
  return scores;
}

// The scores of a row before and after a first compression, which keeps all of 200 tokens.
struct PooledScores {
  std::vector<float> before;
  std::vector<float> after;
};
PooledScores pooled_scores(KvPolicy policy) {
  policy.budget().amount = KvAmount::of_share(1);
  CompressionWorld world({.formats = {policy.high}}, 9);
  world.open(0, policy, 200);
  world.append(0, 200);
  PooledScores scores{.before = scores_of(world, 3), .after = {}};
  compress_prompt(world, 0);
  scores.after = scores_of(world, 3);
  return scores;
}

TEST(KvCompress, PoolsThePromptsScoresOverNeighbours) {
  const KvPolicy policy = snapkv();
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

}  // namespace
}  // namespace tessera
