#include "eval/score/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "eval/measurement/seeded_random.h"

namespace tessera {
namespace {

using testing::HasSubstr;

double uniform(SeededRandom& random) {
  return (static_cast<double>(random.next() >> 11) + 0.5) / 9007199254740992.0;  // 2^53
}

double normal(SeededRandom& random) {  // Box and Muller
  return std::sqrt(-2 * std::log(uniform(random))) * std::cos(6.283185307179586 * uniform(random));
}

// Returns: the share of simulations whose bound lies on the right side of the known mean.
struct Coverage {
  double high = 0;
  double low = 0;
};
template <class Draw>
Coverage coverage(size_t contexts, double mean, decltype(percentile_bounds)& bounds_of,
                  Draw&& draw) {
  constexpr int kSimulations = 300;
  Coverage coverage;
  SeededRandom random(11);
  for (uint64_t i = 0; i < kSimulations; ++i) {
    std::vector<Ratio> ratios;
    for (size_t c = 0; c < contexts; ++c) ratios.push_back({draw(random), 1});
    const Bounds bounds = bounds_of(ratios, i);
    coverage.high += bounds.high >= mean ? 1.0 / kSimulations : 0;
    coverage.low += bounds.low <= mean ? 1.0 / kSimulations : 0;
  }
  return coverage;
}

TEST(Bounds, HoldTheMeanOfANormalDistributionIn95Of100Cases) {
  for (const size_t contexts : {5u, 12u, 40u}) {
    for (auto* const bounds_of : {percentile_bounds, studentized_bounds}) {
      const Coverage held =
          coverage(contexts, 3, *bounds_of, [](SeededRandom& r) { return 3 + normal(r); });
      EXPECT_NEAR(held.high, 0.95, 0.04) << contexts;  // 3.2 standard errors of 300 draws
      EXPECT_NEAR(held.low, 0.95, 0.04) << contexts;
    }
  }
}

TEST(Bounds, AreHigherIfTheyAreStudentizedAndTheDistributionIsSkewed) {
  const auto skewed = [](SeededRandom& r) { return std::exp(normal(r)); };
  const Coverage held = coverage(12, std::exp(0.5), studentized_bounds, skewed);
  const Coverage percentiles = coverage(12, std::exp(0.5), percentile_bounds, skewed);
  EXPECT_GT(held.high, 0.85) << "12 contexts do not show the tail; 87 % were seen";
  EXPECT_GT(held.high, percentiles.high + 0.03) << "the reason for studentized bounds";
  EXPECT_GT(held.low, 0.92);
}

TEST(Bounds, WeighContextsByTheirPositions) {
  const std::vector<Ratio> contexts = {{10, 10}, {0, 90}};
  EXPECT_DOUBLE_EQ(percentile_bounds(contexts, 1).value, 0.1);
}

TEST(Bounds, AreClopperAndPearsonsForAShare) {
  EXPECT_NEAR(binomial_bounds(0, 30).high, 1 - std::pow(0.05, 1.0 / 30), 1e-9);
  EXPECT_NEAR(binomial_bounds(5, 100).high, 0.10225338, 1e-7);  // by exact rational sums
  EXPECT_NEAR(binomial_bounds(5, 100).low, 0.01990556, 1e-7);
  EXPECT_EQ(binomial_bounds(0, 30).low, 0);
  EXPECT_EQ(binomial_bounds(30, 30).high, 1);
}

// Contexts of 20 right answers, of which `lost` are lost in each, and of 100 positions.
std::vector<ContextEvidence> evidence(size_t contexts, double kl, double lost) {
  return std::vector<ContextEvidence>(contexts, {{100 * kl, 100}, {lost, 20}});
}

TEST(Verdict, IsLosslessOnlyIfBothUpperBoundsAreWithin) {
  EXPECT_EQ(judge(evidence(12, 0.005, 0), 0).verdict, Verdict::lossless);
  EXPECT_EQ(judge(evidence(12, 0.015, 0), 0).verdict, Verdict::near) << "by divergence";
  EXPECT_EQ(judge(evidence(12, 0.005, 0.5), 0).verdict, Verdict::near) << "by 2.5 % of answers";
}

TEST(Verdict, NeedsEvidenceAndNotOnlyAGoodScore) {
  const Judgement few = judge(evidence(2, 0.001, 0), 0);
  EXPECT_EQ(few.verdict, Verdict::undecided);
  EXPECT_THAT(few.reason, HasSubstr("too few"));
  // No loss in 5 * 8 answers is a share of up to 7.2 %.
  const std::vector<ContextEvidence> five(5, {{0.1, 100}, {0, 8}});
  EXPECT_EQ(judge(five, 0).verdict, Verdict::undecided);
  EXPECT_NEAR(judge(five, 0).lost->high, 1 - std::pow(0.05, 1.0 / 40), 1e-9);
}

TEST(Verdict, IsNoWhenTheLimitIsRefuted) {
  EXPECT_EQ(judge(evidence(12, 0.001, 3), 0).verdict, Verdict::no) << "15 % of answers";
  EXPECT_EQ(judge(evidence(12, 0.001, 1), 0).verdict, Verdict::undecided) << "5 % is the limit";
}

TEST(Verdict, GoesByTheDivergenceWhereNoAnswerCounts) {
  const auto of = [](double kl) {
    return judge(std::vector<ContextEvidence>(12, {{100 * kl, 100}, {}}), 0).verdict;
  };
  EXPECT_EQ(of(0.009), Verdict::lossless);
  EXPECT_EQ(of(0.02), Verdict::near);
  EXPECT_EQ(of(0.06), Verdict::no);
}

TEST(Verdict, IsUndecidedWhereThePolicyHasNotActed) {
  const Judgement judgement = judge(std::vector<ContextEvidence>(12), 0);
  EXPECT_EQ(judgement.verdict, Verdict::undecided);
  EXPECT_THAT(judgement.reason, HasSubstr("changed nothing"));
  EXPECT_FALSE(judgement.kl.has_value());
}

TEST(Verdict, IsNotLosslessOnAMeanThatAFewContextsMakeUncertain) {
  // A mean of 0.0085 nats, but half of it in two contexts of twelve.
  std::vector<ContextEvidence> contexts = evidence(12, 0.0051, 0);
  contexts[0].kl.sum = contexts[1].kl.sum = 100 * 0.0255;
  const Judgement judgement = judge(contexts, 0);
  EXPECT_LT(judgement.kl->value, 0.01);
  EXPECT_GT(judgement.kl->high, 0.01);
  EXPECT_EQ(judgement.verdict, Verdict::near);
}

}  // namespace
}  // namespace tessera
