// Scores of tokens that come one by one: attention leaves its weights, and kv_score reads them.
// kv_score_test.cpp covers every format, GQA ratio and head dimension.

#include <gtest/gtest.h>

#include "bench/ops/paper_leankv.h"
#include "tests/kernels/scored_sequence.h"

namespace tessera {
namespace {

class KvScoreDecode : public testing::TestWithParam<Device> {
 protected:
  const Device& device() const { return GetParam(); }
};

TEST_P(KvScoreDecode, TakesWhatAttentionLeft) {
  if (!leaves_attention_weights(device())) {
    GTEST_SKIP() << "this backend leaves none";
  }
  uint32_t seed = 1;
  for (const KvFormat format : {kKvF16, kKvFp8, kKvK8V4, kKvK4V2, kKvK2V4, kKvK4V2R, kKvK3V3R,
                                kKvK6V4R, kKvS50, kKvS70K4V4}) {
    if (!serves(device(), format)) {
      continue;
    }
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    ScoreShape shape{.policy = scored(static_cast<KvScorer>(1 + seed % 4), 40, true, format)};
    shape.gqa_ratio = seed % 2 == 0 ? 3 : 5;
    shape.prompt = 124;
    shape.tokens = 130;  // a group closes
    expect_same_bits_by_products(device(), shape, seed++, {124, 1, 1, 1, 1, 1, 1});
  }
}

// 10 tiles, which some backends compute as more than one split.
TEST_P(KvScoreDecode, TakesTheWeightsOfEverySplit) {
  if (!leaves_attention_weights(device())) {
    GTEST_SKIP() << "this backend leaves none";
  }
  ScoreShape shape{.policy = scored(KvScorer::mean, 3, true, kKvK8V4)};
  shape.kv_heads = 1;
  shape.prompt = 600;
  shape.tokens = 603;
  expect_same_bits_by_products(device(), shape, 7, {600, 1, 1, 1});
}

// Neither tier ends at a tile of 64, and neither do the tokens before the open group.
TEST_P(KvScoreDecode, TakesWhatBothTiersLeft) {
  if (!leaves_attention_weights(device())) {
    GTEST_SKIP() << "this backend leaves none";
  }
  ScoreShape shape{.policy = paper_leankv(), .tokens = 206, .compress_at = 200};
  expect_same_bits_by_products(device(), shape, 8, {200, 1, 1, 1, 1, 1, 1});
}

// Decode sequences, one of them without room for weights; and one with a prompt.
TEST_P(KvScoreDecode, DoesNotDependOnTheRestOfTheBatch) {
  ScoreShape shape{.policy = scored(KvScorer::mean, 0, true, kKvK8V4)};
  shape.prompt = 60;
  shape.tokens = 90;
  const std::vector<int32_t> chunks{60, 1, 1, 1, 1, 1, 20, 1, 1, 1, 1, 1};
  const auto alone = ScoredSequence(shape, 9).run(device(), chunks);
  shape.others = 2;
  EXPECT_EQ(ScoredSequence(shape, 9).run(device(), chunks), alone);
  shape.weights = false;
  EXPECT_EQ(ScoredSequence(shape, 9).run(device(), chunks), alone);
}

// A replay scores its section alone, to the bits that the section has where all tokens have scores.
TEST_P(KvScoreDecode, ScoresASectionAsItsTokensAreScoredAmongAll) {
  for (const KvScorer scorer : {KvScorer::replay, KvScorer::replay_output}) {
    if (serves(device(), scorer)) {
      ScoreShape shape{.policy = scored(scorer, 0, true, kKvK8V4)};
      shape.prompt = 192;
      shape.tokens = 262;
      shape.section = 128;
      expect_scores_of_the_section_alone(device(), shape, 12,
                                         {{192, 70}, {192, 1, 63, 1, 5}, {150, 42, 69, 1}});
    }
  }
}

// Generated tokens have token scores even if their queries do not count. Then their score is 0.
TEST_P(KvScoreDecode, CreatesTokenScoresForQueriesThatAreNotScored) {
  ScoreShape shape{.policy = scored(KvScorer::sum, 40, false, kKvF16)};
  shape.prompt = 100;
  shape.tokens = 104;
  const auto scores = ScoredSequence(shape, 10).run(device(), {100, 1, 1, 1, 1});
  EXPECT_EQ(scores, ScoredSequence(shape, 10).run(device(), {104}));
  for (const std::vector<float>& of_head : scores) {
    EXPECT_GT(of_head[99], 0.0f);
    EXPECT_EQ(of_head[100], 0.0f);
    EXPECT_EQ(of_head[103], 0.0f);
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(KvScoreDecode);
INSTANTIATE_TEST_SUITE_P(Device, KvScoreDecode, testing::ValuesIn(devices_of_this_machine()),
                         [](const auto& device) { return device.param.name; });

}  // namespace
}  // namespace tessera
