#include <gtest/gtest.h>

#include "bench/ops/paper_leankv.h"
#include "tests/kernels/scored_sequence.h"

namespace tessera {
namespace {

class KvScore : public testing::TestWithParam<Device> {
 protected:
  const Device& device() const { return GetParam(); }
};

// Products in f16 may be off by more, as half_step.h says.
TEST_P(KvScore, IsTheAttentionOfTheScoredQueries) {
  uint32_t seed = 1;
  for (const KvFormat format : named_formats()) {
    if (!serves(device(), format)) {
      continue;
    }
    const bool halves = format.is_sparse() && multiplies_halves(*device().backend);
    const double relative = halves ? 2e-2 : 2e-3;
    for (const KvScorer scorer : {KvScorer::mean, KvScorer::sum, KvScorer::squares,
                                  KvScorer::replay, KvScorer::replay_output}) {
      if (!serves(device(), scorer)) {
        continue;
      }
      ScoreShape shape{.policy = scored(scorer, seed % 3 == 0 ? 0 : 40, seed % 2 == 0, format)};
      shape.gqa_ratio = 1 + static_cast<int32_t>(seed % 5);
      shape.head_dim = seed % 4 == 0 ? 80 : 16;
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      ScoredSequence sequence(shape, seed++);
      const auto scores = sequence.run(device(), {100, 100, 30, 40});
      for (int32_t head = 0; head < shape.kv_heads; ++head) {
        const std::vector<double> expected = sequence.expected(head);
        for (size_t t = 0; t < expected.size(); ++t) {
          const double score = scores[static_cast<size_t>(head)][t];
          ASSERT_NEAR(score, expected[t], 1e-5 + relative * expected[t])
              << "head " << head << " token " << t;
        }
      }
    }
  }
}

TEST_P(KvScore, DoesNotDependOnChunks) {
  const std::vector<std::vector<int32_t>> cuts{
      {192, 8, 70}, {1, 63, 64, 64, 8, 1, 1, 1, 67}, {199, 1, 55, 1, 14}, {100, 100, 70}};
  for (const KvFormat format : {kKvF16, kKvK8V4, kKvK4V2, kKvS50, kKvS70K4V4}) {
    for (const KvScorer scorer :
         {KvScorer::mean, KvScorer::squares, KvScorer::replay, KvScorer::replay_output}) {
      if (!serves(device(), scorer)) {
        continue;
      }
      ScoredSequence sequence({.policy = scored(scorer, 90, true, format)}, 77);
      const auto whole = sequence.run(device(), {270});
      for (const std::vector<int32_t>& chunks : cuts) {
        EXPECT_EQ(sequence.run(device(), chunks), whole);
      }
    }
  }
}

TEST_P(KvScore, ReadsBothTiersAfterCompression) {
  ScoreShape shape{.policy = paper_leankv(), .compress_at = 200};
  ScoredSequence sequence(shape, 5);
  const auto whole = sequence.run(device(), {200, 70});
  EXPECT_EQ(sequence.run(device(), {150, 50, 1, 9, 60}), whole);
  // The attention of each of the 64 + 70 counting queries sums to one.
  for (const std::vector<float>& scores : whole) {
    double sum = 0;
    for (const float score : scores) {
      EXPECT_GE(score, 0.0f);
      sum += score;
    }
    EXPECT_NEAR(sum, 134, 0.01);
  }
}

TEST_P(KvScore, WeightsThatAttentionLeftGiveTheBitsOfAnotherProduct) {
  if (!leaves_attention_weights(device())) {
    GTEST_SKIP() << "this backend leaves none";
  }
  uint32_t seed = 100;
  for (const KvFormat format : named_formats()) {
    if (!serves(device(), format)) {
      continue;
    }
    for (const int32_t gqa_ratio : {1, 2, 4, 8}) {
      const int32_t head_dims[] = {64, 80, 128};
      ScoreShape shape{.policy = scored(static_cast<KvScorer>(1 + seed % 4), 40, true, format)};
      shape.gqa_ratio = gqa_ratio;
      shape.head_dim = head_dims[seed % 3];
      shape.tokens = 210;
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      const std::vector<int32_t> chunks{190, 1, 1, 1, 7, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
      expect_same_bits_by_products(device(), shape, seed++, chunks);
    }
  }
}

// The tiles of a long row are divided among threads, and attention divides them into splits.
TEST_P(KvScore, WeightsOfLongRowsAreThoseOfTheirTiles) {
  if (!leaves_attention_weights(device())) {
    GTEST_SKIP() << "this backend leaves none";
  }
  ScoreShape shape{.policy = paper_leankv(), .prompt = 2200, .tokens = 2262, .compress_at = 2200};
  std::vector<int32_t> chunks{2200};
  chunks.resize(63, 1);
  const auto with = ScoredSequence(shape, 7).run(device(), chunks);
  shape.weights = false;
  EXPECT_EQ(ScoredSequence(shape, 7).run(device(), {2200, 62}), with);
}

// A long row, which begins to be scored at a split of attention.
TEST_P(KvScore, ScoresASectionAsItsTokensAreScoredAmongAll) {
  uint32_t seed = 500;
  for (const KvFormat format : {kKvF16, kKvK4V4R, kKvS50}) {
    const KvScorer scorer = seed % 2 == 0 ? KvScorer::replay : KvScorer::replay_output;
    if (serves(device(), format) && serves(device(), scorer)) {
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      ScoreShape shape{.policy = scored(scorer, 0, true, format)};
      shape.kv_heads = 1;
      shape.prompt = 1216;
      shape.tokens = 1230;
      shape.section = 128;
      expect_scores_of_the_section_alone(device(), shape, seed++, {{1216, 14}, {1216, 1, 13}});
    }
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(KvScore);
INSTANTIATE_TEST_SUITE_P(Device, KvScore, testing::ValuesIn(devices_of_this_machine()),
                         [](const auto& device) { return device.param.name; });

}  // namespace
}  // namespace tessera
