#include "server/request/kv_overrides.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/kv/kv_presets.h"
#include "server/base/error.h"
#include "server/dialect/kv_cache.h"
#include "server/grpc/kv_options.h"
#include "server/openai/request.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::HasSubstr;

KvOverrides overrides_of(const std::string& kv_cache) {
  const auto request = parse_completion_request(R"({"prompt":"a","kv_cache":)" + kv_cache + "}");
  EXPECT_TRUE(request.ok()) << request.status();
  return request->each.kv;
}

KvPreset resolved(const KvOverrides& overrides) {
  const auto kv = resolve_kv_policy(overrides, kKvPresetF16);
  EXPECT_TRUE(kv.ok()) << kv.status();
  EXPECT_TRUE(kv->has_value());
  return **kv;
}

TEST(KvOverrides, IsEmptyWithoutTheField) {
  const auto request = parse_completion_request(R"({"prompt":"a"})");
  ASSERT_TRUE(request.ok());
  const auto kv = resolve_kv_policy(request->each.kv, kKvPresetF16);
  ASSERT_TRUE(kv.ok());
  EXPECT_FALSE(kv->has_value());
}

TEST(KvOverrides, IsAPresetByName) {
  EXPECT_EQ(resolved(overrides_of(R"("snapkv")")), *find_kv_preset("snapkv"));
  EXPECT_EQ(resolved(overrides_of(R"({"preset":"k8v4"})")), *find_kv_preset("k8v4"));
  EXPECT_EQ(resolved(overrides_of(R"({"preset":"k4v8"})")), uniform_kv(kKvK4V8));
}

TEST(KvOverrides, ChangesFieldsOfAPreset) {
  const KvPreset kv = resolved(
      overrides_of(R"({"preset":"leankv","alpha_high":2.5,"sinks":8,"compress_generated":true})"));
  EXPECT_EQ(kv.name, "custom");
  EXPECT_EQ(kv.policy.thresholds().alpha_high, 2.5f);
  EXPECT_EQ(kv.policy.sinks, 8);
  EXPECT_EQ(kv.policy.low, kKvK4V2);
  const KvPreset mass =
      resolved(overrides_of(R"({"preset":"leankv","mass_keep":0.99,"mass_high":0.9})"));
  EXPECT_EQ(mass.policy.rule(), KvRule::mass);
}

TEST(KvOverrides, IsRefusedByName) {
  const auto refusal = [](const char* kv_cache) {
    const auto kv = resolve_kv_policy(overrides_of(kv_cache), kKvPresetF16);
    EXPECT_EQ(kv.status().code(), absl::StatusCode::kInvalidArgument) << kv_cache;
    EXPECT_EQ(json::parse(print_error(kv.status()))["error"]["param"], "kv_cache");
    return std::string(kv.status().message());
  };
  EXPECT_THAT(refusal(R"("leankvv")"), HasSubstr("leankvv"));
  EXPECT_THAT(refusal(R"("leankv:sinks=3")"), HasSubstr("leankv:sinks=3"));
  EXPECT_THAT(refusal(R"({"preset":"leankv","tresholds":1})"), HasSubstr("tresholds"));
  EXPECT_THAT(refusal(R"({"prest":"leankv"})"), HasSubstr("beside its preset there are high, low"));
  EXPECT_THAT(refusal(R"({"preset":"leankv","alpha_low":-1})"), HasSubstr("alpha_low"));
  EXPECT_THAT(refusal(R"({"preset":"leankv","sinks":1.5})"), HasSubstr("sinks"));
  EXPECT_THAT(refusal(R"({"preset":"snapkv","keep_share":0.5,"mass_keep":0.9})"),
              HasSubstr("choose one"));
  EXPECT_THAT(refusal(R"("h2o")"), HasSubstr("'h2o' is no longer served: take kv-compress"));
  EXPECT_THAT(refusal(R"({"preset":"snapkv","pooling":"window"})"),
              HasSubstr("'pooling' is no longer"));
}

TEST(KvOverrides, NameTheSuccessorOfARetiredFieldOverGrpc) {
  v1::KvOptions options;
  ASSERT_TRUE(
      google::protobuf::TextFormat::ParseFromString("preset: 'snapkv' score_decay: 0.5", &options));
  const auto kv = resolve_kv_policy(parse_kv_options(options), kKvPresetF16);
  EXPECT_THAT(std::string(kv.status().message()),
              HasSubstr("'score_decay' is no longer served: take score_window"));
}

TEST(KvOverrides, RefuseAnotherTypeWhereItIsRead) {
  for (const char* body :
       {R"({"prompt":"a","kv_cache":3})", R"({"prompt":"a","kv_cache":{"preset":1}})",
        R"({"prompt":"a","kv_cache":{"sinks":null}})", R"({"prompt":"a","kv_cache":{"low":{}}})"}) {
    const auto request = parse_completion_request(body);
    EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument) << body;
    EXPECT_THAT(std::string(request.status().message()), HasSubstr("kv_cache")) << body;
  }
}

TEST(KvOverrides, HasEveryFieldOnTheWireOfGrpcToo) {
  for (const KvPreset& preset : kv_presets()) {
    KvReport report;
    report.add({preset, {}});
    const v1::KvUsage usage = to_wire(report);
    EXPECT_EQ(usage.policy(), preset.name);
    KvOverrides overrides = parse_kv_options(usage.options());
    overrides.preset = std::string(preset.name);
    EXPECT_EQ(resolved(overrides), preset) << "the described policy can be requested";
  }
}

TEST(KvReport, AddsBytesAndTellsTheMeanOfTokens) {
  const KvPreset leankv = *find_kv_preset("leankv");
  KvReport report;
  EXPECT_TRUE(report.empty());
  report.add({leankv, {.bytes = 100, .f16_bytes = 500, .high = 10, .low = 4, .dropped = 2}});
  KvUsage tightened{.bytes = 50, .f16_bytes = 300, .high = 20, .low = 6, .dropped = 0};
  tightened.budget_share = 0.75;
  report.add({leankv, tightened});
  const json told = kv_cache_json(report);
  EXPECT_EQ(told["policy"], "leankv");
  EXPECT_EQ(told["settings"]["alpha_high"], leankv.policy.thresholds().alpha_high);
  EXPECT_EQ(told["settings"]["high"], "k8v4");
  EXPECT_EQ(told["settings"]["compress_generated"], true);
  EXPECT_EQ(told["bytes"], 150);
  EXPECT_EQ(told["f16_bytes"], 800);
  EXPECT_EQ(told["tokens"], json::parse(R"({"high":15.0,"low":5.0,"dropped":1.0})"));
  EXPECT_EQ(told["budget_share"], 0.75) << "the least";
  EXPECT_EQ(to_wire(report).budget_share(), 0.75);
}

}  // namespace
}  // namespace tessera
