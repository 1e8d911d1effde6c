#include "eval/measurement/statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "engine/distribution.h"
#include "eval/measurement/seeded_random.h"

namespace tessera {
namespace {

TEST(SeededRandom, IsTheSameEverywhere) {
  SeededRandom random(0);
  EXPECT_EQ(random.next(), 0xE220A8397B1DCDAFu);  // the published first value of SplitMix64
  SeededRandom again(7);
  SeededRandom other(7);
  for (int i = 0; i < 100; ++i) {
    const size_t drawn = again.between(3, 5);
    EXPECT_EQ(drawn, other.between(3, 5));
    EXPECT_GE(drawn, 3u);
    EXPECT_LE(drawn, 5u);
  }
}

TEST(Quantile, InterpolatesBetweenNeighbours) {
  std::vector<double> values = {4, 1, 3, 2};
  EXPECT_EQ(quantile(values, 0), 1);
  EXPECT_EQ(quantile(values, 1), 4);
  EXPECT_DOUBLE_EQ(quantile(values, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(quantile(values, 0.25), 1.75);
  std::vector<double> one = {8};
  EXPECT_EQ(quantile(one, 0.99), 8);
}

Statistic mean_of(const std::vector<double>& values) {
  return [&values](std::span<const size_t> items) {
    double sum = 0;
    for (const size_t item : items) sum += values[item];
    return sum / static_cast<double>(items.size());
  };
}

TEST(Bootstrap, GivesTheIntervalOfAMean) {
  std::vector<double> coins(400, 0);
  std::fill(coins.begin(), coins.begin() + 100, 1);
  const Interval interval = bootstrap(coins.size(), mean_of(coins), 1);
  EXPECT_DOUBLE_EQ(interval.value, 0.25);
  // The normal interval is 0.25 +- 1.96 * sqrt(0.25 * 0.75 / 400) = 0.25 +- 0.042.
  EXPECT_NEAR(interval.low, 0.2076, 0.008);
  EXPECT_NEAR(interval.high, 0.2924, 0.008);
}

TEST(Bootstrap, DependsOnItsSeedAlone) {
  const std::vector<double> values = {1, 2, 4, 8, 16, 32};
  const Interval first = bootstrap(values.size(), mean_of(values), 5);
  const Interval again = bootstrap(values.size(), mean_of(values), 5);
  EXPECT_EQ(first.low, again.low);
  EXPECT_EQ(first.high, again.high);
  EXPECT_NE(first.low, bootstrap(values.size(), mean_of(values), 6).low);
}

TEST(Bootstrap, IsAPointWhereNothingVaries) {
  const std::vector<double> equal = {3, 3, 3};
  const Interval interval = bootstrap(equal.size(), mean_of(equal), 0);
  EXPECT_EQ(interval.low, 3);
  EXPECT_EQ(interval.high, 3);
  EXPECT_TRUE(interval.contains(3));
  EXPECT_FALSE(interval.contains(3.1));
  const std::vector<double> single = {9};
  EXPECT_EQ(bootstrap(1, mean_of(single), 0).high, 9);
}

// Returns: logits of the probabilities, all shifted by `shift`, which softmax ignores.
std::vector<float> logits_of(std::vector<double> probabilities, double shift = 0) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p) + shift));
  return logits;
}

TEST(Distribution, ScoresAToken) {
  const std::vector<float> logits = logits_of({0.5, 0.125, 0.375}, 11);
  EXPECT_NEAR(score_token(logits, 0).logprob, std::log(0.5), 1e-6);
  EXPECT_NEAR(score_token(logits, 1).logprob, std::log(0.125), 1e-6);
  EXPECT_TRUE(score_token(logits, 0).likeliest);
  EXPECT_FALSE(score_token(logits, 2).likeliest);
}

TEST(Distribution, BreaksTiesByTheLowestId) {
  EXPECT_EQ(likeliest_token(std::vector<float>{1, 2, 2}), 1);
}

TEST(KlDivergence, IsTheTextbooks) {
  // 0.5 ln(0.5/0.25) + 0.5 ln(0.5/0.75) = 0.5 ln 2 - 0.5 ln 1.5
  EXPECT_NEAR(kl_divergence(logits_of({0.5, 0.5}, 3), logits_of({0.25, 0.75}, -40)),
              0.5 * std::log(2) - 0.5 * std::log(1.5), 1e-6);
  // Not symmetric: 0.25 ln(0.25/0.5) + 0.75 ln(0.75/0.5)
  EXPECT_NEAR(kl_divergence(logits_of({0.25, 0.75}), logits_of({0.5, 0.5})),
              0.25 * std::log(0.5) + 0.75 * std::log(1.5), 1e-6);
}

TEST(KlDivergence, IsZeroForEqualDistributionsAndNeverNegative) {
  SeededRandom random(3);
  std::vector<float> logits(4096);
  for (float& logit : logits) logit = static_cast<float>(random.below(2000)) / 100;
  std::vector<float> shifted = logits;
  for (float& logit : shifted) logit += 8;
  EXPECT_EQ(kl_divergence(logits, logits), 0);
  EXPECT_GE(kl_divergence(logits, shifted), 0);
  EXPECT_LT(kl_divergence(logits, shifted), 1e-9);
}

TEST(KlDivergence, OutlivesLogitsThatAreFarApart) {
  const std::vector<float> sure = {500, -500};
  const std::vector<float> wrong = {-500, 500};
  EXPECT_NEAR(kl_divergence(sure, wrong), 1000, 1e-9);
}

}  // namespace
}  // namespace tessera
