#include "load/arrivals/arrivals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace tessera::load {
namespace {

struct Moments {
  double mean = 0;
  double deviation = 0;  // standard deviation over mean: the coefficient of variation
};

Moments gaps_of(const ArrivalOptions& options, int count) {
  Arrivals arrivals(options, 7);
  double before = arrivals.next();
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < count; ++i) {
    const double now = arrivals.next();
    sum += now - before;
    squares += (now - before) * (now - before);
    before = now;
  }
  const double mean = sum / count;
  return {mean, std::sqrt(squares / count - mean * mean) / mean};
}

TEST(Arrivals, ConstantGapsAreEqual) {
  const Moments gaps = gaps_of({.process = ArrivalProcess::constant, .rate = 4}, 100);
  EXPECT_NEAR(gaps.mean, 0.25, 1e-9);
  EXPECT_NEAR(gaps.deviation, 0, 1e-6);
}

TEST(Arrivals, PoissonGapsVaryAsMuchAsTheirMean) {
  const Moments gaps = gaps_of({.process = ArrivalProcess::poisson, .rate = 4}, 40000);
  EXPECT_NEAR(gaps.mean, 0.25, 0.005);
  EXPECT_NEAR(gaps.deviation, 1, 0.03);
}

TEST(Arrivals, GammaGapsVaryByTheRootOfBurstiness) {
  const Moments bursts =
      gaps_of({.process = ArrivalProcess::gamma, .rate = 4, .burstiness = 0.25}, 60000);
  EXPECT_NEAR(bursts.mean, 0.25, 0.01);
  EXPECT_NEAR(bursts.deviation, 2, 0.08);
  const Moments even =
      gaps_of({.process = ArrivalProcess::gamma, .rate = 4, .burstiness = 16}, 20000);
  EXPECT_NEAR(even.deviation, 0.25, 0.01);
}

// From 0 to t of a ramp from 2 to 10 in 4 s: 2 t + t^2 arrivals; then 10 a second.
TEST(Arrivals, ARampHasTheArrivalsOfItsArea) {
  Arrivals arrivals(
      {.process = ArrivalProcess::constant, .rate = 2, .end_rate = 10, .ramp_seconds = 4}, 0);
  std::vector<double> times;
  for (int i = 0; i < 45; ++i) times.push_back(arrivals.next());
  EXPECT_NEAR(times[3], 1, 1e-9);
  EXPECT_NEAR(times[24], 4, 1e-9);
  EXPECT_NEAR(times[44], 6, 1e-9);
}

TEST(Arrivals, TheSameSeedGivesTheSameTimes) {
  const ArrivalOptions options{.process = ArrivalProcess::gamma, .rate = 3, .burstiness = 0.5};
  Arrivals one(options, 1), same(options, 1), other(options, 2);
  one.next(), same.next(), other.next();
  const double second = one.next();
  EXPECT_EQ(second, same.next());
  EXPECT_NE(second, other.next());
}

TEST(Arrivals, AnUnknownProcessIsRefusedByName) {
  EXPECT_THAT(std::string(parse_arrival_process("even").status().message()),
              testing::HasSubstr("'even'"));
}

}  // namespace
}  // namespace tessera::load
