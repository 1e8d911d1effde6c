// Budgets of running sequences are tightened before any of them loses its slot. Runs a real
// transformer with random weights. KvCache::tighten checks each planned lower bound by itself.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "engine/batching_engine.h"
#include "engine/kv/kv_presets.h"
#include "engine/kv/kv_tightening.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "models/weights/random_checkpoint.h"
#include "tests/engine/batching_engine_of.h"
#include "tests/engine/kv_memory.h"
#include "tests/engine/kv_named.h"
#include "tests/engine/recording_sink.h"
#include "tests/engine/small_model.h"
#include "tests/kernels/head_profiles.h"
#include "tests/kernels/isas.h"
#include "tests/models/temporary_directory.h"

namespace tessera {
namespace {

constexpr int32_t kTightContext = 640;
constexpr int32_t kSlots = 4;

KvPreset preset_of(std::string_view name) {
  KvPreset preset = kv_named(name);
  // so that thresholds compress at the attention of random weights
  if (preset.policy.keep.is<KeepByThresholds>()) {
    preset.policy.keep = KeepByThresholds{.alpha_high = 1.5f, .alpha_low = 0.5f};
  }
  return preset;
}

class Tightening : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(write_random_checkpoint(directory_.path(), small_model(kTightContext), 5).ok());
  }

  // row_pages: of each (layer, KV head); 0: enough for all.
  std::unique_ptr<BatchingEngine> engine(const KvPreset& preset, int64_t row_pages,
                                         const std::vector<KvPreset>& also = {}) {
    const Backend& backend = cpu_backend(isas_of_this_machine().back());
    EngineOptions options;
    options.max_step_tokens = 128;
    options.max_sequences = kSlots;
    options.context = kTightContext;
    options.kv = preset;
    options.kv_also = also;
    options.max_queue = 64;
    options.kv_head_profiles = uneven_head_profiles(4);
    const KvCacheOptions kv{.preset = preset,
                            .also = also,
                            .prefix_cache = options.prefix_cache,
                            .layers = 2,
                            .kv_heads = 2,
                            .head_dim = 32,
                            .query_heads = 4,
                            .head_profiles = uneven_head_profiles(4),
                            .slots = kSlots,
                            .context = kTightContext};
    options.kv_bytes =
        row_pages == 0 ? 0 : kv_memory(kv, std::max(row_pages, context_row_pages(kv) + 1));
    return batching_engine_of(directory_.path(), options, 128, backend, threads_.stream());
  }

  static EngineRequest request_of(int32_t prompt, int32_t max_tokens, uint64_t seed,
                                  std::optional<float> floor) {
    std::mt19937_64 random(seed);
    EngineRequest request;
    for (int32_t i = 0; i < prompt; ++i) {
      request.prompt.push_back(3 + static_cast<int32_t>(random() % 94));
    }
    request.max_tokens = max_tokens;
    request.ignore_eos = true;
    request.sampling.temperature = 0;
    request.kv_floor = floor;
    return request;
  }

  static std::shared_ptr<RecordingSink> submit(Engine& engine, EngineRequest request) {
    auto sink = std::make_shared<RecordingSink>();
    request.sinks = {sink};
    EXPECT_TRUE(engine.submit(std::move(request)).ok());
    return sink;
  }

  static void run(BatchingEngine& engine) {
    while (engine.step()) {
      engine.kv().check_integrity();
    }
  }

  // Four sequences that outgrow the pages while they generate.
  struct Outcome {
    std::vector<Finish> finishes;
    std::vector<std::vector<int32_t>> texts;
    EngineStats stats;
  };
  static Outcome crowd(BatchingEngine& engine, std::optional<float> floor,
                       bool first_is_deterministic = false) {
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    for (int32_t i = 0; i < kSlots; ++i) {
      EngineRequest request = request_of(200 + i, 400, static_cast<uint64_t>(i), floor);
      request.deterministic = first_is_deterministic && i == 0;
      sinks.push_back(submit(engine, std::move(request)));
    }
    run(engine);
    Outcome outcome;
    for (const auto& sink : sinks) {
      outcome.finishes.push_back(*sink->finish());
      outcome.texts.push_back(sink->tokens());
    }
    outcome.stats = engine.stats();
    return outcome;
  }

  ThreadPool threads_{1};
  TemporaryDirectory directory_;
};

KvPreset most_tokens(std::string_view name) {
  KvPreset preset = preset_of(name);
  preset.policy.budget().amount = KvAmount::of_share(0.8f);
  return preset;
}

TEST_F(Tightening, ComesBeforePreemption) {
  for (const char* name : {kAllQueries, "kv-compress", "streaming"}) {
    SCOPED_TRACE(name);
    const Outcome preempted = crowd(*engine(most_tokens(name), 20), 1);
    EXPECT_GT(preempted.stats.preemptions, 0);
    EXPECT_EQ(preempted.stats.kv_tightenings, 0);
    const Outcome tightened = crowd(*engine(most_tokens(name), 20), 0.2f);
    EXPECT_EQ(tightened.stats.preemptions, 0);
    EXPECT_GT(tightened.stats.kv_tightenings, 0);
    EXPECT_EQ(tightened.stats.pages_free, tightened.stats.pages_total);
    for (size_t i = 0; i < tightened.finishes.size(); ++i) {
      EXPECT_EQ(preempted.finishes[i].kv.usage.budget_share, 1);
      EXPECT_LE(tightened.finishes[i].kv.usage.bytes, preempted.finishes[i].kv.usage.bytes);
    }
  }
}

TEST_F(Tightening, StopsAtTheFloorOfARequestAndThenPreempts) {
  const float floor = 0.6f;
  const KvPreset preset = most_tokens(kAllQueries);
  const Outcome outcome = crowd(*engine(preset, 12), floor);
  EXPECT_GT(outcome.stats.kv_tightenings, 0);
  EXPECT_GT(outcome.stats.preemptions, 0);
  double least = 1;
  for (const Finish& finish : outcome.finishes) {
    const KvUsage& usage = finish.kv.usage;
    least = std::min(least, usage.budget_share);
    const double tokens = usage.high + usage.low + usage.dropped;
    for (const int32_t kept : usage.kept) {
      EXPECT_GE(kept, static_cast<int32_t>(floor * preset.policy.budget().amount.share() * tokens));
    }
  }
  EXPECT_FLOAT_EQ(static_cast<float>(least), floor);
}

TEST_F(Tightening, SparesDeterministicRequests) {
  const KvPreset preset = most_tokens(kAllQueries);
  const Outcome roomy = crowd(*engine(preset, 0), 0.2f, true);
  const Outcome scarce = crowd(*engine(preset, 16), 0.2f, true);
  EXPECT_EQ(roomy.stats.kv_tightenings, 0);
  EXPECT_GT(scarce.stats.kv_tightenings, 0);
  EXPECT_EQ(scarce.finishes[0].kv.usage.budget_share, 1);
  EXPECT_EQ(scarce.texts[0], roomy.texts[0]);
  EXPECT_NE(scarce.texts, roomy.texts) << "others are tightened";
}

TEST_F(Tightening, LeavesWhatOthersShare) {
  const KvPreset preset = most_tokens("streaming");
  const auto scarce = engine(preset, 14);
  EngineRequest first = request_of(320, 1, 1, 0.2f);
  first.cache.pin = true;  // inserted on first use
  submit(*scarce, first);
  run(*scarce);
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int32_t i = 0; i < 3; ++i) {
    EngineRequest request = first;
    request.cache.pin = false;
    request.max_tokens = 300;
    request.prompt.push_back(5 + i);
    sinks.push_back(submit(*scarce, std::move(request)));
  }
  run(*scarce);
  EXPECT_GT(scarce->stats().kv_tightenings, 0);
  for (const auto& sink : sinks) {
    const Finish finish = *sink->finish();
    EXPECT_GT(finish.cached_tokens, 0);
    EXPECT_EQ(sink->tokens().size(), 300u);
    for (const int32_t kept : finish.kv.usage.kept) {
      EXPECT_GE(kept, finish.cached_tokens);
    }
  }
}

template <class Change>
KvPreset changed(std::string_view name, Change&& change) {
  KvPreset preset = preset_of(name);
  change(preset.policy);
  return preset;
}

std::vector<KvPreset> presets_of_one_tier() {
  std::vector<KvPreset> presets;
  for (const char* name :
       {kAllQueries, "kv-compress", "snapkv", "streaming", "retrieval-50:high=f16:low=f16"}) {
    presets.push_back(preset_of(name));
    presets.push_back(changed(
        name, [](KvPolicy& policy) { policy.budget().amount = KvAmount::of_bytes(200'000); }));
    presets.push_back(
        changed(name, [](KvPolicy& policy) { policy.budget().amount = KvAmount::of_tokens(190); }));
  }
  return presets;
}

std::vector<KvPreset> presets_of_two_tiers() {
  std::vector<KvPreset> presets;
  presets.push_back(preset_of("leankv"));
  presets.push_back(preset_of(kStrictLeanKv));
  for (const char* name : {kAllQueries, "retrieval-50"}) {
    presets.push_back(changed(name, [](KvPolicy& policy) {
      policy.high = kKvK8V4;
      policy.low = kKvK4V2;
      policy.budget().high_share = 0.4f;
      policy.budget().amount = KvAmount::of_share(0.7f);
    }));
  }
  return presets;
}

// Every scorer, allocator and rule of the presets, every kind of budget, and more requests than
// slots. Page accounting must hold after every step, and every request must finish.
TEST_F(Tightening, KeepsTheAccountsThroughRandomTraffic) {
  std::mt19937_64 random(7);
  for (const bool two_tiers : {false, true}) {
    const std::vector<KvPreset> presets =
        two_tiers ? presets_of_two_tiers() : presets_of_one_tier();
    const auto engine = this->engine(presets[0], 12, presets);
    const int64_t total = engine->stats().pages_total;
    for (int32_t round = 0; round < 60; ++round) {
      SCOPED_TRACE(testing::Message() << presets[0].name << ", round " << round);
      std::vector<std::shared_ptr<RecordingSink>> sinks;
      for (uint64_t i = 0; i < 2 + random() % 6; ++i) {
        EngineRequest request = request_of(1 + static_cast<int32_t>(random() % 300),
                                           1 + static_cast<int32_t>(random() % 330), random() % 4,
                                           0.1f + 0.1f * static_cast<float>(random() % 10));
        request.kv = presets[random() % presets.size()];
        request.priority = static_cast<int32_t>(random() % 3);
        sinks.push_back(submit(*engine, std::move(request)));
      }
      run(*engine);
      for (const auto& sink : sinks) {
        ASSERT_EQ(sink->finish()->reason, FinishReason::length);
      }
      ASSERT_EQ(engine->stats().pages_free, total);
    }
    EXPECT_GT(engine->stats().kv_tightenings, 0);
    EXPECT_GT(engine->stats().preemptions, 0);
  }
}

TEST_F(Tightening, RefusesAFloorOutOfRange) {
  const auto engine = this->engine(preset_of(kAllQueries), 0);
  EngineRequest request = request_of(3, 1, 1, 0.05f);
  request.sinks = {std::make_shared<RecordingSink>()};
  const auto refused = engine->submit(std::move(request));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.status().message(), "kv_floor is 0.05, it must be a number from 0.1 to 1");
}

TEST(BudgetShare, FallsByAQuarterWithEachStepDownToTheFloor) {
  EXPECT_FLOAT_EQ(budget_share(0.5f, 0), 1);
  EXPECT_FLOAT_EQ(budget_share(0.5f, 1), 0.75f);
  EXPECT_FLOAT_EQ(budget_share(0.5f, 2), 0.5625f);
  EXPECT_FLOAT_EQ(budget_share(0.5f, 3), 0.5f);
  EXPECT_FLOAT_EQ(budget_share(0.1f, kMaxTightenings), 0.1f) << "every floor is reached";
  EXPECT_FLOAT_EQ(budget_share(1, 3), 1);
}

}  // namespace
}  // namespace tessera
