#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "load/report/report.h"

namespace tessera::load {
namespace {

using nlohmann::json;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

json report_of(double factor) {
  Histogram histogram;
  Variates variates(5);
  for (int i = 0; i < 2000; ++i) histogram.add(factor * (1 + variates.uniform()));
  json buckets = json::array();
  for (const auto& [index, count] : histogram.buckets()) {
    buckets.push_back({Histogram::bucket_value(index), count});
  }
  const json measure = {{"histogram", buckets}, {"independent", histogram.count()}};
  const json rate = {{"value", 10 / factor}, {"low", 9.9 / factor}, {"high", 10.1 / factor}};
  return {
      {"latency", {{"ttft", measure}, {"itl", measure}, {"tpot", measure}, {"e2e", measure}}},
      {"throughput", {{"requests_per_s", rate}, {"output_tokens_per_s", rate}}},
      {"answers", {{"checked", 9}, {"correct_share", {{"value", 1}, {"low", 0.99}, {"high", 1}}}}}};
}

TEST(CompareReports, PrintsRatiosWithIntervals) {
  const auto text = compare_reports(report_of(1), report_of(0.5));
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text,
              ContainsRegex("ttft p50, ms +1[45][0-9.]+ +7[45][0-9.]+ +0\\.[45][0-9]+ .*less"));
  EXPECT_THAT(*text, ContainsRegex("requests_per_s +10.00 +20.00 +2.000 .*more"));
}

TEST(CompareReports, FindsNoDifferenceOfARunToItself) {
  const auto text = compare_reports(report_of(1), report_of(1));
  ASSERT_TRUE(text.ok());
  EXPECT_THAT(*text, HasSubstr("1.000 ["));
  EXPECT_THAT(*text, Not(HasSubstr("less")));
  EXPECT_THAT(*text, Not(HasSubstr("more")));
}

TEST(CompareReports, RefusesOtherFiles) {
  EXPECT_FALSE(compare_reports(json::object(), json::object()).ok());
}

}  // namespace
}  // namespace tessera::load
