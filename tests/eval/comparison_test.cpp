#include "eval/compare/comparison.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

constexpr LogitBound kExact{.weights = WeightFormat::f32, .kv = kKvF16, .layers = 2};

TEST(Comparison, FindsNoDifferenceBetweenEqualLogits) {
  const std::vector<float> logits{3, 1, -4};
  Comparison found;
  found.add(logits, logits, kExact);
  EXPECT_EQ(found.positions, 1);
  EXPECT_EQ(found.same_first, 1);
  EXPECT_EQ(found.decided, 1);
  EXPECT_EQ(found.decided_differently, 0);
  EXPECT_EQ(found.mean_divergence(), 0);
  EXPECT_EQ(found.largest_difference, 0);
}

TEST(Comparison, DoesNotMindAShiftOfAllLogits) {
  Comparison found;
  found.add(std::vector<float>{3, 1, -4}, std::vector<float>{5, 3, -2}, kExact);
  EXPECT_NEAR(found.largest_difference, 0, 1e-6);
  EXPECT_NEAR(found.mean_divergence(), 0, 1e-6);
}

TEST(Comparison, CountsAnotherFirstTokenAsWrongWhereTheLeadIsBeyondTheBound) {
  // The largest logit is 4 from the mean, so the bound of two layers is 4 * 5 * (2^-24 + 2^-11).
  const double bound = kExact.relative() * 4;
  EXPECT_NEAR(bound, 4 * 5 * 0x1p-11, 1e-4);
  const std::vector<float> sure{2, static_cast<float>(2 - 2.1 * bound), -4};
  const std::vector<float> unsure{2, static_cast<float>(2 - 1.9 * bound), -4};
  const std::vector<float> other{1, 2, -4};
  Comparison found;
  found.add(sure, other, kExact);
  EXPECT_EQ(found.decided, 1);
  EXPECT_EQ(found.decided_differently, 1);
  found.add(unsure, other, kExact);
  EXPECT_EQ(found.decided, 1);
  EXPECT_EQ(found.decided_differently, 1);
  EXPECT_EQ(found.same_first, 0);
  EXPECT_EQ(found.positions, 2);
}

TEST(Comparison, KnowsQuantilesOfDivergence) {
  Comparison found;
  found.divergences = {4, 1, 3, 2, 0};
  EXPECT_EQ(found.divergence_at(0), 0);
  EXPECT_EQ(found.divergence_at(0.5), 2);
  EXPECT_EQ(found.divergence_at(1), 4);
  EXPECT_EQ(found.mean_divergence(), 2);
}

TEST(LogitBound, GrowsWithTheCoarsenessOfFormats) {
  const auto of = [](WeightFormat weights, KvFormat kv) {
    return LogitBound{weights, kv, 6}.relative();
  };
  EXPECT_LT(of(WeightFormat::f32, kKvF32), of(WeightFormat::f32, kKvF16));
  EXPECT_LT(of(WeightFormat::f32, kKvF16), of(WeightFormat::bf16, kKvF16));
  EXPECT_LT(of(WeightFormat::bf16, kKvF16), of(WeightFormat::fp8, kKvF16));
  EXPECT_LT(of(WeightFormat::bf16, kKvK8V8), of(WeightFormat::bf16, kKvK4V2));
}

}  // namespace
}  // namespace tessera
