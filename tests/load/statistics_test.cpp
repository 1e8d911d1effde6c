#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "load/stats/histogram.h"
#include "load/stats/measures.h"

namespace tessera::load {
namespace {

TEST(Histogram, QuantilesAreWithinHalfAPercent) {
  Histogram histogram;
  for (int i = 1; i <= 10000; ++i) histogram.add(i * 1e-4);
  for (const double q : {0.01, 0.5, 0.9, 0.99, 0.999}) {
    EXPECT_NEAR(histogram.quantile(q), q, 0.006 * q) << q;
  }
  EXPECT_EQ(histogram.max(), 1.0);
}

TEST(Histogram, OneValueIsExact) {
  Histogram histogram;
  histogram.add(0.123456);
  EXPECT_EQ(histogram.quantile(0.5), 0.123456);
}

TEST(Histogram, MemoryDoesNotGrowWithTheValues) {
  Histogram histogram;
  Variates variates(3);
  for (int i = 0; i < 200000; ++i) histogram.add(variates.exponential());
  EXPECT_LT(histogram.buckets().size(), 1500u);
}

TEST(Histogram, MergingEqualsAddingAll) {
  Histogram all, even, odd;
  for (int i = 1; i < 1000; ++i) {
    all.add(i * 1e-3);
    (i % 2 == 0 ? even : odd).add(i * 1e-3);
  }
  even.merge(odd);
  EXPECT_EQ(even.buckets(), all.buckets());
  EXPECT_EQ(even.count(), all.count());
}

// The interval must hold the true median in about 95 % of samples.
TEST(Histogram, IntervalsCoverTheTrueQuantile) {
  int covered = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Histogram histogram;
    Variates variates(seed + 1000);
    for (int i = 0; i < 200; ++i) histogram.add(variates.exponential());
    const Interval interval = histogram.interval(0.5, histogram.count(), seed);
    covered += interval.contains(std::log(2.0)) ? 1 : 0;
  }
  EXPECT_GE(covered, 88);
  EXPECT_LE(covered, 100);
}

TEST(Histogram, FewerIndependentValuesWidenTheInterval) {
  Histogram histogram;
  for (int i = 1; i <= 1000; ++i) histogram.add(i);
  const Interval all = histogram.interval(0.5, 1000, 0);
  const Interval few = histogram.interval(0.5, 50, 0);
  EXPECT_GT(few.high - few.low, 2 * (all.high - all.low));
}

TEST(ShareInterval, IsWilsons) {
  const Interval share = share_interval(8, 10);
  EXPECT_NEAR(share.low, 0.490, 0.001);
  EXPECT_NEAR(share.high, 0.943, 0.001);
  EXPECT_LT(share_interval(1000, 1000).low, 1);
}

RequestRecord record_at(double intended, double first, double end, int64_t tokens) {
  RequestRecord record;
  record.workload = "chat";
  record.intended = intended;
  record.sent = intended;
  record.texts = {first, end};
  record.end = end;
  record.usage = ReportedUsage{.prompt_tokens = 10, .completion_tokens = tokens};
  return record;
}

TEST(Measures, FollowTheirFormulas) {
  Measures measures;
  measures.add(record_at(1, 1.5, 3.5, 5), {});
  EXPECT_NEAR(measures.ttft.quantile(0.5), 0.5, 1e-9);
  EXPECT_NEAR(measures.itl.quantile(0.5), 2, 1e-9);
  EXPECT_NEAR(measures.tpot.quantile(0.5), 0.5, 1e-9);  // 2 s for 4 tokens after the first
  EXPECT_NEAR(measures.e2e.quantile(0.5), 2.5, 1e-9);
  EXPECT_EQ(measures.output_tokens, 5);
}

TEST(Measures, GoodputCountsRequestsWithinEveryLimit) {
  const auto slos = SloLimit::parse("ttft_p90=600ms,e2e_p99=2s");
  ASSERT_TRUE(slos.ok());
  Measures measures;
  measures.add(record_at(0, 0.5, 1.9, 2), *slos);
  measures.add(record_at(0, 0.5, 2.1, 2), *slos);
  measures.add(record_at(0, 0.7, 1.0, 2), *slos);
  EXPECT_EQ(measures.within_slo, 1);
}

TEST(Measures, FaultyClientsAreLeftOut) {
  Measures measures;
  RequestRecord record = record_at(0, 1, 2, 3);
  record.faulty = true;
  measures.add(record, {});
  EXPECT_EQ(measures.requests, 0);
  EXPECT_EQ(measures.injected, 1);
  EXPECT_EQ(measures.e2e.count(), 0);
}

TEST(RunStatistics, LeavesTheWarmupOut) {
  RunStatistics statistics({}, 1);
  statistics.add(record_at(0.5, 0.6, 0.7, 2));
  statistics.add(record_at(1.5, 1.6, 2.0, 2));
  EXPECT_EQ(statistics.all().requests, 1);
  EXPECT_EQ(statistics.seconds(), 1);
  EXPECT_EQ(statistics.timeline().size(), 3u);
}

TEST(SloLimit, RefusesAnUnknownMeasureOrUnit) {
  EXPECT_TRUE(SloLimit::parse("tpot_p99.9=50ms").ok());
  for (const char* wrong : {"itl_p90=1s", "ttft=1s", "ttft_p90=1", "ttft_p100=1s", "ttft_p90=0s"}) {
    EXPECT_THAT(std::string(SloLimit::parse(wrong).status().message()), testing::HasSubstr(wrong));
  }
}

}  // namespace
}  // namespace tessera::load
