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

json rates_report() {
  json points = json::array();
  for (const double rate : {2.0, 4.0}) {
    points.push_back({{"rate", rate},
                      {"ttft_p90", {{"value", rate / 100}, {"low", 0.01}, {"high", 0.1}}},
                      {"answers", {{"checked", 10}, {"correct_share", {{"value", 0.9}}}}},
                      {"cached_share", 0.25},
                      {"kv_bytes_per_request", 3 << 20},
                      {"most_kv_bytes", 5 << 20}});
  }
  return {{"command", "tessera-load recall --rates 2,4"},
          {"machine", "4 x some CPU"},
          {"model", "tiny"},
          {"sweep", {{"points", points}}}};
}

TEST(Curves, ShowLatencyAnswersAndBytesByRateOfEachReport) {
  json unchecked = rates_report();
  for (json& point : unchecked["sweep"]["points"]) point["answers"]["checked"] = 0;
  const auto page = print_curves({{"f16", rates_report()}, {"k4v2 & ladder", unchecked}});
  ASSERT_TRUE(page.ok()) << page.status();
  for (const char* part :
       {"f16, 4 requests/s: 40 ms", "f16, 4 requests/s: 90 % of those checked",
        "k4v2 &amp; ladder, 2 requests/s: 3 MiB, mean", "f16, 2 requests/s: 5 MiB, at most",
        "tessera-load recall --rates 2,4", "4 x some CPU"}) {
    EXPECT_THAT(*page, HasSubstr(part));
  }
  EXPECT_THAT(*page, Not(HasSubstr("k4v2 &amp; ladder, 4 requests/s: 90 %")));
}

TEST(Curves, RefuseAReportOfOneRate) {
  EXPECT_THAT(std::string(print_curves({{"a", report_of(1)}}).status().message()),
              HasSubstr("--rates or --sweep"));
}

TEST(CompareReports, RefusesOtherFiles) {
  EXPECT_FALSE(compare_reports(json::object(), json::object()).ok());
}

}  // namespace
}  // namespace tessera::load
