#include "kernels/kv/kv_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "kernels/backend.h"
#include "tests/kernels/policies.h"

namespace tessera {
namespace {

using testing::HasSubstr;

template <class Change>
std::string error_after(KvPolicy policy, Change&& change) {
  change(policy);
  return policy_error(policy);
}

TEST(KvPolicy, NamesTheFieldThatIsOutOfRange) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(error_after(leankv(), [](KvPolicy& p) { p.thresholds().alpha_low = -1; }),
              HasSubstr("alpha_low"));
  EXPECT_THAT(error_after(leankv(), [](KvPolicy& p) { p.thresholds().alpha_high = 0.2f; }),
              HasSubstr("alpha_high"));
  EXPECT_THAT(error_after(leankv(), [nan](KvPolicy& p) { p.thresholds().alpha_high = nan; }),
              HasSubstr("alpha_high"));
  EXPECT_THAT(error_after(leankv(), [](KvPolicy& p) { p.sinks = -1; }), HasSubstr("sinks"));
  EXPECT_THAT(error_after(leankv(), [](KvPolicy& p) { p.recent = 0; }), HasSubstr("recent"));
  EXPECT_THAT(error_after(leankv(), [](KvPolicy& p) { p.score_pool = 4; }),
              HasSubstr("score_pool"));
  EXPECT_THAT(error_after(leankv(), [](KvPolicy& p) { p.score_pool = 65; }),
              HasSubstr("score_pool"));
  EXPECT_THAT(error_after(leankv(), [](KvPolicy& p) { p.score_window = -1; }),
              HasSubstr("score_window"));
  EXPECT_THAT(error_after(leankv(), [](KvPolicy& p) { p.keep = KeepMass{.mass_high = 2}; }),
              HasSubstr("mass_high"));
}

TEST(KvPolicy, NamesTheNumberOfABudgetThatIsOutOfRange) {
  const auto error_of = [](const KeepBudget& budget) {
    return error_after(all_queries(), [&](KvPolicy& p) { p.keep = budget; });
  };
  EXPECT_THAT(error_of({.retrieval_share = 1.5f}), HasSubstr("retrieval_share"));
  EXPECT_THAT(error_of({.high_share = 2}), HasSubstr("high_share"));
  EXPECT_THAT(error_of({.amount = KvAmount::of_share(1.5f)}), HasSubstr("keep_share"));
  EXPECT_THAT(error_of({.amount = KvAmount::of_share(0)}), HasSubstr("keep_share"));
  EXPECT_THAT(error_of({.amount = KvAmount::of_tokens(0)}), HasSubstr("keep_tokens"));
  EXPECT_THAT(error_of({.amount = KvAmount::of_bytes(-1)}), HasSubstr("keep_bytes"));
}

TEST(KvPolicy, RefusesWhatDoesNotGoTogether) {
  EXPECT_THAT(error_after(leankv(), [](KvPolicy& p) { std::swap(p.high, p.low); }),
              HasSubstr("more precise"));
  EXPECT_THAT(error_after(leankv(),
                          [](KvPolicy& p) {
                            p.low = {4, 3};
                          }),
              HasSubstr("without kernels"));
  EXPECT_THAT(error_after(leankv(), [](KvPolicy& p) { p.scorer = KvScorer::none; }),
              HasSubstr("scorer"));
  EXPECT_THAT(error_after(all_queries(),
                          [](KvPolicy& p) {
                            p.budget().allocator = KvAllocator::pages;
                            p.low = kKvK4V2;
                          }),
              HasSubstr("pages"));
  EXPECT_THAT(error_after(leankv(), [](KvPolicy& p) { p.scorer = KvScorer::replay; }),
              HasSubstr("score_pool"));
  EXPECT_THAT(error_after(leankv(), [](KvPolicy& p) { p.keep = KeepAll(); }), HasSubstr("low"));
}

TEST(KvPolicy, IsEqualToAnotherOfTheSameRuleAndNumbers) {
  EXPECT_EQ(leankv(), leankv());
  EXPECT_NE(leankv(), strict_leankv());
  KvPolicy mass = leankv();
  mass.keep = KeepMass();
  EXPECT_NE(mass, leankv());
  KvPolicy tokens = all_queries();
  tokens.budget().amount = KvAmount::of_tokens(1);
  EXPECT_NE(tokens, all_queries());
}

TEST(KvPolicy, SaysWhichQueriesCount) {
  const KvScoring score_window = scoring_of(snapkv(), 100);
  EXPECT_EQ(score_window.begin, 68);
  EXPECT_EQ(score_window.end, 100);
  const KvScoring running = scoring_of(leankv(), 10);
  EXPECT_EQ(running.begin, 0);
  EXPECT_EQ(running.end, std::numeric_limits<int32_t>::max());
  const KvScoring unscored = scoring_of(streaming(), 40);
  EXPECT_TRUE(unscored.token_scores);
  EXPECT_EQ(unscored.begin, unscored.end);
  EXPECT_FALSE(scoring_of(KvPolicy{.high = kKvK8V4, .low = kKvK8V4}, 40).token_scores);
}

}  // namespace
}  // namespace tessera
