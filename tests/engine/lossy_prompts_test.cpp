// Lossy policies with the prefix cache. A prompt that comes once is compressed as without a cache;
// a prompt that recurs is shared. Runs a real transformer with random weights.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "engine/batching_engine.h"
#include "engine/kv/kv_presets.h"
#include "engine/kv/kv_shareable.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "models/weights/random_checkpoint.h"
#include "tests/engine/batching_engine_of.h"
#include "tests/engine/kv_memory.h"
#include "tests/engine/kv_named.h"
#include "tests/engine/recording_sink.h"
#include "tests/engine/small_model.h"
#include "tests/kernels/isas.h"
#include "tests/models/temporary_directory.h"

namespace tessera {
namespace {

constexpr int32_t kContext = 640;

std::vector<int32_t> prompt_of(int32_t length, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(length));
  for (int32_t& token : tokens) {
    token = 3 + static_cast<int32_t>(random() % 94);
  }
  return tokens;
}

class LossyPrompts : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(write_random_checkpoint(directory_.path(), small_model(kContext), 5).ok());
  }

  std::unique_ptr<BatchingEngine> engine(const KvPreset& preset, bool cache = true,
                                         bool scarce = false,
                                         const std::vector<KvPreset>& also = {}) {
    const Backend& backend = cpu_backend(isas_of_this_machine().back());
    EngineOptions options;
    options.max_step_tokens = 128;
    options.max_sequences = 4;
    options.context = kContext;
    options.kv = preset;
    options.kv_also = also;
    options.prefix_cache = cache;
    options.speculation = false;  // so that sequences are long beside each other
    options.kv_ladder = ladder_;
    options.max_queue = 64;
    if (scarce) {
      const KvCacheOptions kv{.preset = preset,
                              .also = also,
                              .prefix_cache = cache,
                              .layers = 2,
                              .kv_heads = 2,
                              .head_dim = 32,
                              .query_heads = 4,
                              .slots = options.max_sequences,
                              .context = kContext};
      options.kv_bytes = kv_memory(kv, context_row_pages(kv) * 3 / 2);
    }
    return batching_engine_of(directory_.path(), options, 128, backend, threads_.stream());
  }

  static EngineRequest request_of(std::vector<int32_t> prompt, int32_t max_tokens = 3) {
    EngineRequest request;
    request.prompt = std::move(prompt);
    request.max_tokens = max_tokens;
    request.ignore_eos = true;
    request.sampling.temperature = 0;
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

  static Finish ask(BatchingEngine& engine, EngineRequest request) {
    const auto sink = submit(engine, std::move(request));
    run(engine);
    return *sink->finish();
  }

  void keep_accounts();

  std::optional<std::vector<KvFormat>> ladder_;
  int64_t preemptions_ = 0;  // during keep_accounts()
  ThreadPool threads_{1};
  TemporaryDirectory directory_;
};

TEST_F(LossyPrompts, AreCompressedAsIfThereWereNoCache) {
  for (const char* name : {kAllQueries, "kv-compress", "snapkv", "streaming", kStrictLeanKv}) {
    SCOPED_TRACE(name);
    KvPreset preset = kv_named(name);
    // so that thresholds compress at the attention of random weights
    if (preset.policy.keep.is<KeepByThresholds>()) {
      preset.policy.keep = KeepByThresholds{.alpha_high = 1.5f, .alpha_low = 0.9f};
    }
    preset.policy.score_pool = 1;
    const auto cached = engine(preset);
    const auto alone = engine(preset, false);
    for (const int32_t length : {500, 333, 129}) {
      const Finish with = ask(*cached, request_of(prompt_of(length, 7), 40));
      const Finish without = ask(*alone, request_of(prompt_of(length, 7), 40));
      EXPECT_EQ(with.cached_tokens, 0);
      EXPECT_EQ(with.kv.usage.bytes, without.kv.usage.bytes);
      EXPECT_EQ(with.kv.usage.high, without.kv.usage.high);
      EXPECT_EQ(with.kv.usage.low, without.kv.usage.low);
      EXPECT_EQ(with.kv.usage.kept, without.kv.usage.kept);
      EXPECT_GT(with.kv.usage.dropped + with.kv.usage.low, 0);
      cached->flush_cache();
      run(*cached);
    }
  }
}

TEST_F(LossyPrompts, EndAtTheirBudget) {
  KvPreset budget = kv_named(kAllQueries);
  budget.policy.budget().amount = KvAmount::of_tokens(200);
  const auto engine = this->engine(budget);
  const int32_t length = 600;
  for (int32_t i = 0; i < 3; ++i) {  // scores of all queries: nothing is shared
    const KvUsage usage = ask(*engine, request_of(prompt_of(length, 1), 1)).kv.usage;
    ASSERT_EQ(usage.kept.size(), 4u);
    for (const int32_t kept : usage.kept) {
      EXPECT_EQ(kept, 200);
    }
    EXPECT_NEAR(usage.high + usage.dropped, length, 0.01);
  }
  EXPECT_EQ(engine->stats().cache.blocks, 0);
}

TEST_F(LossyPrompts, AreSharedFromTheSecondSightOn) {
  const auto engine = this->engine(*find_kv_preset("leankv"));
  const int32_t block = engine->stats().prefix_block_tokens;
  const std::vector<int32_t> prompt = prompt_of(500, 1);
  const int32_t shareable = shareable_tokens(find_kv_preset("leankv")->policy, 500) / block * block;
  EXPECT_EQ(ask(*engine, request_of(prompt)).cached_tokens, 0);
  EXPECT_EQ(engine->stats().cache.blocks, 0);
  EXPECT_EQ(ask(*engine, request_of(prompt)).cached_tokens, 0);
  EXPECT_EQ(engine->stats().cache.blocks * block, shareable);
  EXPECT_EQ(ask(*engine, request_of(prompt)).cached_tokens, shareable);
}

TEST_F(LossyPrompts, ShareWhatTheyBeginWithAndNoMore) {
  const auto engine = this->engine(*find_kv_preset("leankv"));
  const int32_t block = engine->stats().prefix_block_tokens;
  const int32_t common = 256 / block * block;
  for (uint32_t i = 1; i < 6; ++i) {
    std::vector<int32_t> prompt = prompt_of(common, 1);
    const std::vector<int32_t> own = prompt_of(300, 100 + i);
    prompt.insert(prompt.end(), own.begin(), own.end());
    EXPECT_EQ(ask(*engine, request_of(prompt, 100)).cached_tokens, i > 2 ? common : 0);
    EXPECT_EQ(engine->stats().cache.blocks * block, i > 1 ? common : 0);
  }
}

TEST_F(LossyPrompts, CountAsSeenBeforeIfTheyArriveTogether) {
  const auto engine = this->engine(*find_kv_preset("leankv"));
  const int32_t block = engine->stats().prefix_block_tokens;
  const int32_t shareable = shareable_tokens(find_kv_preset("leankv")->policy, 500) / block * block;
  const std::vector<int32_t> prompt = prompt_of(500, 1);
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int32_t i = 0; i < 4; ++i) {
    sinks.push_back(submit(*engine, request_of(prompt)));
  }
  run(*engine);
  EXPECT_EQ(engine->stats().cache.blocks * block, shareable);
  EXPECT_EQ(sinks[0]->finish()->cached_tokens, 0) << "computes for itself";
  EXPECT_EQ(sinks[1]->finish()->cached_tokens, 0) << "computes for the others";
  EXPECT_EQ(sinks[2]->finish()->cached_tokens, shareable) << "waits for it";
  EXPECT_EQ(sinks[3]->finish()->cached_tokens, shareable);
}

TEST_F(LossyPrompts, AreSeenOnceHoweverManySamplesTheyHave) {
  const auto engine = this->engine(*find_kv_preset("leankv"));
  EngineRequest request = request_of(prompt_of(500, 1));
  for (int32_t i = 0; i < 3; ++i) {
    request.sinks.push_back(std::make_shared<RecordingSink>());
  }
  ASSERT_TRUE(engine->submit(std::move(request)).ok());
  run(*engine);
  EXPECT_EQ(engine->stats().cache.blocks, 0);
}

TEST_F(LossyPrompts, ReadWhatOthersLeft) {
  const auto engine =
      this->engine(*find_kv_preset("leankv"), true, false, {*find_kv_preset("k8v4")});
  const int32_t block = engine->stats().prefix_block_tokens;
  EngineRequest uniform = request_of(prompt_of(320, 1));
  uniform.kv = *find_kv_preset("k8v4");
  ask(*engine, uniform);
  std::vector<int32_t> prompt = prompt_of(320, 1);
  prompt.resize(600, 5);
  const int64_t blocks = engine->stats().cache.blocks;
  EXPECT_EQ(ask(*engine, request_of(prompt)).cached_tokens, 320 / block * block);
  EXPECT_EQ(engine->stats().cache.blocks, blocks);
}

TEST_F(LossyPrompts, AreInsertedAtOnceIfTheyArePinned) {
  const auto engine = this->engine(*find_kv_preset("leankv"));
  const int32_t block = engine->stats().prefix_block_tokens;
  EngineRequest request = request_of(prompt_of(500, 1), 100);
  request.cache.pin = true;
  ask(*engine, request);
  EXPECT_EQ(engine->stats().cache.pinned_blocks, 500 / block);
  EXPECT_EQ(engine->stats().cache.blocks, 500 / block) << "generated tokens never enter";
  EXPECT_GT(ask(*engine, request_of(prompt_of(500, 1))).cached_tokens, 0);
}

TEST_F(LossyPrompts, AreNotSeenUnderAnotherSaltNorBeforeAFlush) {
  const auto engine = this->engine(*find_kv_preset("leankv"));
  EngineRequest request = request_of(prompt_of(500, 1));
  ask(*engine, request);
  request.cache_salt = "another";
  ask(*engine, request);
  EXPECT_EQ(engine->stats().cache.blocks, 0);
  engine->flush_cache();
  ask(*engine, request);
  EXPECT_EQ(engine->stats().cache.blocks, 0);
  ask(*engine, request);
  EXPECT_GT(engine->stats().cache.blocks, 0);
}

// Results of a sequence that reads a shared prompt and one with a uniform format (the bystander),
// in a pool that both fill.
struct Squeezed {
  std::vector<int32_t> tokens;     // of the sequence that shares
  std::vector<int32_t> bystander;  // of the other sequence
  KvUsage usage;                   // of the sequence that shares
  int64_t preempted_before = 0;    // preemptions before blocks were first handed over
  EngineStats stats;
};

Squeezed squeeze(BatchingEngine& engine, EngineRequest sharing, const EngineRequest& bystander) {
  EngineRequest first = sharing;
  first.max_tokens = 1;
  first.cache.pin = true;  // inserted on first use
  first.cache.ttl = std::chrono::seconds(0);
  first.sinks = {std::make_shared<RecordingSink>()};
  EXPECT_TRUE(engine.submit(first).ok());
  while (engine.step()) {
  }
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (EngineRequest request : {sharing, bystander}) {
    sinks.push_back(std::make_shared<RecordingSink>());
    request.sinks = {sinks.back()};
    EXPECT_TRUE(engine.submit(std::move(request)).ok());
  }
  Squeezed result;
  for (bool more = true; more;) {
    const int64_t preempted = engine.stats().preemptions;
    const int64_t handed_over = engine.stats().cache.handed_over_blocks;
    more = engine.step();
    engine.kv().check_integrity();
    if (handed_over == 0 && engine.stats().cache.handed_over_blocks > 0) {
      result.preempted_before = preempted;
    }
  }
  EXPECT_GT(sinks[0]->finish()->cached_tokens, 0);
  result.tokens = sinks[0]->tokens();
  result.bystander = sinks[1]->tokens();
  result.usage = sinks[0]->finish()->kv.usage;
  result.stats = engine.stats();
  return result;
}

// Covers the three kinds of rule: a budget that follows generation, thresholds, and compression of
// the prompt only.
TEST_F(LossyPrompts, GetWhatTheyAloneUseHandedOverBeforeAnyoneIsPreempted) {
  ladder_ = {kKvK4V2};
  for (const char* name : {"streaming", "leankv", "snapkv"}) {
    SCOPED_TRACE(name);
    KvPreset preset = kv_named(name);
    preset.policy.low = preset.policy.has_low_tier() ? kKvK4V2 : kKvK8V4;
    preset.policy.high = kKvK8V4;
    EngineRequest sharing = request_of(prompt_of(560, 1), 79);
    EngineRequest bystander = request_of(prompt_of(320, 2), 120);
    bystander.kv = *find_kv_preset("k8v4");
    bystander.deterministic = true;
    const auto roomy = this->engine(preset, true, false, {*find_kv_preset("k8v4")});
    const auto scarce = this->engine(preset, true, true, {*find_kv_preset("k8v4")});
    const Squeezed free = squeeze(*roomy, sharing, bystander);
    const Squeezed squeezed = squeeze(*scarce, sharing, bystander);
    EXPECT_EQ(free.stats.cache.handed_over_blocks, 0);
    EXPECT_GT(squeezed.stats.cache.handed_over_blocks, 0);
    EXPECT_EQ(squeezed.preempted_before, 0);
    EXPECT_EQ(squeezed.stats.preemptions, 0) << "compression frees enough pages";
    EXPECT_GT(squeezed.usage.low + squeezed.usage.dropped, free.usage.low + free.usage.dropped);
    EXPECT_LT(squeezed.usage.bytes, free.usage.bytes);
    EXPECT_EQ(squeezed.bystander, free.bystander);
    EXPECT_EQ(squeezed.tokens.size(), 79u);
    EXPECT_EQ(scarce->stats().pages_free, scarce->stats().pages_total);
    scarce->flush_cache();
    run(*scarce);
    EXPECT_EQ(scarce->kv().accounting().free_pages(), scarce->stats().pages_total);
  }
}

// Unique and recurring prompts, uniform and lossy, with too few pages for all. Page accounting must
// hold after every step, every request must finish, and every page must be released.
void LossyPrompts::keep_accounts() {
  const auto preset = [](const char* name) {
    KvPreset found = kv_named(name);
    if (found.policy.keep.is<KeepByThresholds>()) {
      found.policy.keep = KeepByThresholds{.alpha_high = 1.5f, .alpha_low = 0.9f};
    }
    found.policy.high = kKvK8V4;
    found.policy.low = name == std::string_view("leankv") ? kKvK4V2 : kKvK8V4;
    return found;
  };
  const std::vector<KvPreset> presets = {preset("leankv"), preset(kAllQueries),
                                         preset("kv-compress"), preset("streaming"),
                                         *find_kv_preset("k8v4")};
  const auto engine = this->engine(presets[0], true, true, presets);
  const int64_t total = engine->stats().pages_total;
  std::mt19937_64 random(11);
  for (int32_t round = 0; round < 40; ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    for (uint32_t i = 0; i < 1 + random() % 8; ++i) {
      std::vector<int32_t> prompt =
          prompt_of(64 * static_cast<int32_t>(random() % 6), random() % 3);
      const std::vector<int32_t> own =
          prompt_of(1 + static_cast<int32_t>(random() % 250), random());
      prompt.insert(prompt.end(), own.begin(), own.end());
      EngineRequest request =
          request_of(std::move(prompt), 1 + static_cast<int32_t>(random() % 250));
      request.kv = presets[random() % presets.size()];
      request.cache.pin = random() % 16 == 0;
      request.cache.ttl = std::chrono::seconds(0);
      sinks.push_back(submit(*engine, std::move(request)));
    }
    for (bool more = true; more;) {
      more = engine->step();
      engine->kv().check_integrity();
      if (random() % 200 == 0) {
        engine->flush_cache();
      }
    }
    for (const auto& sink : sinks) {
      ASSERT_EQ(sink->finish()->reason, FinishReason::length);
      ASSERT_EQ(sink->events_after_finish(), 0);
    }
    ASSERT_EQ(engine->stats().pages_free, total) << "pages of the prefix cache count as free";
  }
  preemptions_ = engine->stats().preemptions;
  const PrefixCacheStats cache = engine->stats().cache;
  EXPECT_GT(cache.inserted_blocks, 0);
  EXPECT_GT(cache.handed_over_blocks, 0);
  EXPECT_GT(cache.evicted_blocks, 0);
  engine->flush_cache();
  run(*engine);
  EXPECT_EQ(engine->kv().accounting().free_pages(), total);
}

TEST_F(LossyPrompts, KeepTheAccountsThroughRandomTraffic) {
  ladder_ = {kKvK4V2};
  keep_accounts();
  EXPECT_GT(preemptions_, 0);
}

TEST_F(LossyPrompts, KeepTheAccountsWithoutALadder) {
  keep_accounts();
  EXPECT_GT(preemptions_, 0);
}

// Beside k8v4 its pages have room for 48 and 64 tokens, so a group of 64 takes one page or two.
TEST_F(LossyPrompts, KeepTheAccountsWithPagesThatGroupsDoNotFill) {
  ladder_ = {kKvK4V4R};
  keep_accounts();
}

// A preempted first sample finds demoted blocks of its own answer. The next sample forks from its
// prompt, whose blocks all lie in one tier.
TEST_F(LossyPrompts, ForkSamplesFromOneThatBeganWithDemotedBlocks) {
  EngineOptions options;
  options.max_step_tokens = 128;
  options.max_sequences = 2;
  options.context = kContext;
  options.speculation = false;  // so that it preempts at a known token
  options.kv_ladder = std::vector<KvFormat>{kKvK4V2};
  options.max_queue = 64;
  KvCacheOptions kv{.preset = options.kv,
                    .prefix_cache = true,
                    .ladder = *options.kv_ladder,
                    .layers = 2,
                    .kv_heads = 2,
                    .head_dim = 32,
                    .query_heads = 4,
                    .slots = options.max_sequences,
                    .context = kContext};
  options.kv_bytes = kv_memory(kv, context_row_pages(kv) * 3 / 2);
  const auto engine =
      batching_engine_of(directory_.path(), options, 128,
                         cpu_backend(isas_of_this_machine().back()), threads_.stream());
  const auto beside = std::make_shared<RecordingSink>();
  EngineRequest first = request_of(prompt_of(20, 1), 600);
  first.sinks = {beside};
  const auto id = engine->submit(std::move(first));
  ASSERT_TRUE(id.ok());
  EngineRequest request = request_of(prompt_of(200, 2), 400);
  const std::vector<std::shared_ptr<RecordingSink>> samples = {std::make_shared<RecordingSink>(),
                                                               std::make_shared<RecordingSink>()};
  request.sinks = {samples[0], samples[1]};
  ASSERT_TRUE(engine->submit(std::move(request)).ok());
  const auto run_until = [&](auto&& reached) {
    while (!reached() && engine->step()) {
      engine->kv().check_integrity();
    }
  };
  run_until([&] { return samples[0]->tokens().size() == 320; });
  EngineRequest urgent = request_of(prompt_of(400, 3), 100);
  urgent.priority = -1;
  const auto sink = submit(*engine, std::move(urgent));
  run_until([&] { return sink->finish().has_value(); });
  EXPECT_GT(engine->stats().preemptions, 0);
  EXPECT_GT(engine->stats().cache.demoted_blocks, 0);
  run_until([&] { return samples[0]->tokens().size() == 330; });
  EXPECT_FALSE(beside->finish().has_value());
  EXPECT_TRUE(samples[1]->tokens().empty());
  engine->cancel(*id);
  run(*engine);
  for (const auto& sample : samples) {
    EXPECT_EQ(sample->tokens().size(), 400);
  }
}

}  // namespace
}  // namespace tessera
