#include "load/client/server_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::load {
namespace {

using testing::HasSubstr;

constexpr const char* kTessera = R"(# HELP tessera:kv_bytes Bytes
tessera:kv_bytes{model_name="m",format="k8v4",state="private"} 100
tessera:kv_bytes{model_name="m",format="k8v4",state="shared"} 300
tessera:kv_bytes{model_name="m",format="k4v2",state="shared"} 50
tessera:kv_bytes{model_name="m",format="any",state="free"} 9000
tessera:prefix_cache_bytes{model_name="m",state="used"} 20
tessera:prefix_cache_bytes{model_name="m",state="unused"} 330
vllm:num_requests_running{model_name="m"} 2
vllm:num_requests_waiting{model_name="m"} 1
vllm:prefix_cache_hits_total{model_name="m"} 64
tessera:kv_tightenings_total{model_name="m"} 3
broken
)";

TEST(ServerMetrics, ReadsPrometheusText) {
  const ServerReading reading = parse_metrics(kTessera);
  EXPECT_EQ(reading.running, 2);
  EXPECT_EQ(reading.waiting, 1);
  EXPECT_EQ(reading.prefix_hits, 64);
  EXPECT_EQ(reading.tightenings, 3);
  EXPECT_EQ(reading.kv_bytes.at("k8v4"), 400);
  EXPECT_EQ(reading.kv_bytes_total(), 450);
  EXPECT_EQ(reading.held_bytes(), 450 - 350 + 20);
  EXPECT_FALSE(reading.preemptions);
}

TEST(ServerMetrics, AnIdleServerHoldsNothing) {
  ServerReading before =
      parse_metrics("vllm:num_requests_running 0\ntessera:kv_bytes{state=\"private\"} 0\n");
  EXPECT_EQ(idle_violation(before, before), "");
  ServerReading after = before;
  after.running = 1;
  EXPECT_THAT(idle_violation(before, after), HasSubstr("still run"));
  after.running = 0;
  after.waiting = 2;
  EXPECT_THAT(idle_violation(before, after), HasSubstr("still wait"));
  after.waiting = 0;
  after.kv_bytes[""] = 6656;
  EXPECT_THAT(idle_violation(before, after), HasSubstr("6656 bytes"));
  after.prefix_cache_bytes = 6656;  // kept for later requests
  EXPECT_EQ(idle_violation(before, after), "");
}

TEST(ServerMetrics, OtherServersReportTheirShareInUse) {
  ServerReading before, after;
  before.kv_usage = 0.1;
  after.kv_usage = 0.2;
  EXPECT_THAT(idle_violation(before, after), HasSubstr("20 %"));
}

}  // namespace
}  // namespace tessera::load
