// Engines on several ranks against one that has the whole model. Rank 0 leads, the others follow.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "engine/batching_engine.h"
#include "engine/kv/kv_presets.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "models/config/shard.h"
#include "models/weights/random_checkpoint.h"
#include "tests/engine/batching_engine_of.h"
#include "tests/engine/even_grammar.h"
#include "tests/engine/kv_memory.h"
#include "tests/engine/kv_named.h"
#include "tests/engine/recording_sink.h"
#include "tests/engine/small_model.h"
#include "tests/kernels/head_profiles.h"
#include "tests/models/temporary_directory.h"
#include "tests/on_ranks.h"

namespace tessera {
namespace {

constexpr int32_t kContext = 320;
constexpr int32_t kRequests = 20;

ModelConfig model_of_four_kv_heads() {
  return with_four_kv_heads(small_model(kContext));
}

struct Mix {
  std::string name;
  std::vector<KvPreset> kv;  // the first is the default, requests ask for the others
  std::vector<KvFormat> ladder;
  // Max lead, in log probability, of the most likely token where a text first differs from the
  // whole model's. Sums over ranks round differently, and quantised codes with them.
  float gap = 0;
  int32_t divergent = 0;  // texts that may exceed the gap because a policy kept another token
};

// Budgets and thresholds that demote and drop tokens even in texts this short.
std::vector<KvPreset> lossy_presets() {
  KvPreset leankv = *find_kv_preset("leankv");
  leankv.policy.keep = KeepByThresholds{.alpha_high = 1.5f, .alpha_low = 0.5f};
  KvPreset scored = kv_named(kAllQueries);
  scored.policy.budget().amount = KvAmount::of_share(0.5f);
  KvPreset retrieval = kv_named("retrieval-50:high=f16:low=f16");
  retrieval.policy.budget().amount = KvAmount::of_tokens(132);
  return {leankv, scored, retrieval};
}

std::vector<Mix> mixes() {
  std::vector<KvPreset> policies = lossy_presets();
  policies.insert(policies.begin(), kKvPresetF16);
  policies.push_back(uniform_kv(kKvS50));
  return {
      {"f32", {kKvPresetF32}, {}, 1e-4f, 0},
      {"ladder", {kKvPresetK8V4}, {kKvK4V2}, 5e-2f, 0},
      {"policies", policies, {}, 2e-2f, 2},
  };
}

EngineRequest request_of(const Mix& mix, int32_t i) {
  EngineRequest request;
  for (int32_t j = 0; i % 3 == 0 && j < 200; ++j) {  // common prefix
    request.prompt.push_back(3 + j * 11 % 94);
  }
  for (int32_t j = 0; j < 20 + i * 37 % 50; ++j) {
    request.prompt.push_back(3 + (i * 31 + j * 17 + j * j) % 94);
  }
  request.max_tokens = i % 2 == 0 ? 70 : 20;
  request.ignore_eos = true;
  request.priority = -i / 5;  // later requests preempt earlier ones
  request.sampling.temperature = i % 5 == 4 ? 1.0f : 0.0f;
  request.sampling.seed = static_cast<uint64_t>(i);
  if (i % 4 == 1) {  // the leader's masks reach all ranks
    request.ignore_eos = false;
    request.grammar = std::make_shared<EvenGrammar>(15, 2);
  }
  if (i % 7 == 5) {
    request.pooling = i % 2 == 0 ? Pooling::last : Pooling::mean;
  }
  request.sampling.top_logprobs = 2;
  request.kv = mix.kv[static_cast<size_t>(i) % mix.kv.size()];
  // lossy texts depend on the batch otherwise
  request.deterministic = request.kv->policy.is_lossy();
  return request;
}

// Records the lead of the most likely token at each generated token.
class GapSink final : public RecordingSink {
 public:
  void on_logprobs(const TokenLogprobs& logprobs) override {
    gaps.push_back(logprobs.top[0].logprob - logprobs.top[1].logprob);
  }
  std::vector<float> gaps;
};

using Sinks = std::vector<std::shared_ptr<GapSink>>;

class EngineOnRanks : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(
        write_random_checkpoint(directory_.path(), model_of_four_kv_heads(), kRanksSeed).ok());
  }

  // `over`: null for the whole model. `scarce`: pages for one and a half contexts.
  absl::StatusOr<std::unique_ptr<Engine>> make(const Mix& mix, Communicator* over, bool scarce,
                                               int32_t context = kContext,
                                               WeightFormat weights = WeightFormat::f32,
                                               const KvTierOptions& tiers = {}) {
    const Backend& backend = cpu_backend(best_cpu_isa());
    EngineOptions options;
    options.max_step_tokens = 96;
    options.max_sequences = 6;
    options.max_queue = 64;
    options.context = context;
    options.kv = mix.kv.front();
    options.kv_also = {mix.kv.begin() + 1, mix.kv.end()};
    options.kv_ladder = mix.ladder;
    options.ranks = over;
    options.tiers = tiers;
    const ModelConfig whole = model_of_four_kv_heads();
    options.kv_head_profiles = uneven_head_profiles(whole.layers * whole.kv_heads);
    options.clock = [this] { return clock_; };
    const ModelConfig own = shard_config(whole, over == nullptr ? 1 : over->ranks());
    const KvCacheOptions kv{.preset = options.kv,
                            .also = options.kv_also,
                            .prefix_cache = true,
                            .ladder = mix.ladder,
                            .layers = own.layers,
                            .kv_heads = own.kv_heads,
                            .head_dim = own.head_dim,
                            .query_heads = own.heads,
                            .head_profiles = *options.kv_head_profiles,
                            .slots = options.max_sequences,
                            .context = options.context};
    options.kv_bytes = scarce ? kv_memory(kv, context_row_pages(kv) * 3 / 2) : 0;
    return try_engine_of({.directory = directory_.path(), .weights = weights, .ranks = over},
                         options, backend, threads_.stream());
  }

  // Submits a request every other step. Some are cancelled while running, and one exceeds its
  // deadline.
  Sinks serve(Engine& engine, const Mix& mix) {
    Sinks sinks;
    std::vector<RequestId> ids;
    bool busy = true;
    for (int32_t step = 0; busy || step < 2 * kRequests; ++step) {
      if (step % 2 == 0 && step / 2 < kRequests) {
        EngineRequest request = request_of(mix, step / 2);
        for (int32_t i = 0; i < (step / 2 % 7 == 3 ? 3 : 1); ++i) {
          sinks.push_back(std::make_shared<GapSink>());
          request.sinks.push_back(sinks.back());
        }
        if (step / 2 == 8) {
          request.deadline = clock_ + std::chrono::seconds(15);
        }
        const auto id = engine.submit(std::move(request));
        EXPECT_TRUE(id.ok()) << id.status();
        ids.push_back(id.value_or(0));
      }
      if (step == 12 || step == 31) {
        engine.cancel(ids[static_cast<size_t>(step / 3)]);
      }
      clock_ += std::chrono::seconds(1);
      busy = engine.step();
      static_cast<BatchingEngine&>(engine).kv().check_integrity();
    }
    return sinks;
  }

  // Counters that must be equal on all ranks.
  static std::vector<int64_t> counts(const EngineStats& stats) {
    std::vector<int64_t> counts = {
        stats.steps,         stats.preemptions,      stats.pages_total,
        stats.pages_free,    stats.kv_demotions,     stats.kv_dropped_tokens,
        stats.prompt_tokens, stats.generated_tokens, stats.kv_tightenings};
    for (const KvFormatPages& pages :
         std::span(stats.format_pages).first(static_cast<size_t>(stats.formats))) {
      counts.insert(counts.end(), {pages.exclusive, pages.shared});
    }
    return counts;
  }

  ThreadPool threads_{1};
  TemporaryDirectory directory_;
  // Differs between ranks; only the leader's clock is used.
  std::chrono::steady_clock::time_point clock_{std::chrono::hours(1 + ranks().rank())};
};

// Returns: the index of the first token that differs from the whole model's text; -1 if none. For a
// text that was ended early, compares the tokens that both have.
int64_t leaves_at(const GapSink& split, const GapSink& whole) {
  const std::vector<int32_t> a = split.tokens();
  const std::vector<int32_t> b = whole.tokens();
  const size_t both = std::min(a.size(), b.size());
  const auto place = std::mismatch(a.begin(), a.begin() + static_cast<int64_t>(both), b.begin());
  return place.first == a.begin() + static_cast<int64_t>(both) ? -1 : place.first - a.begin();
}

void expect_texts_of_the_whole_model(const Sinks& split, const Sinks& whole, const Mix& mix) {
  ASSERT_EQ(split.size(), whole.size());
  int32_t divergent = 0;
  int32_t embeddings = 0;
  for (size_t i = 0; i < split.size(); ++i) {
    SCOPED_TRACE("sample " + std::to_string(i));
    ASSERT_EQ(split[i]->finish()->reason, whole[i]->finish()->reason);
    if (split[i]->finish()->reason == FinishReason::length) {
      EXPECT_EQ(split[i]->tokens().size(), whole[i]->tokens().size());
    }
    ASSERT_EQ(split[i]->embeddings().size(), whole[i]->embeddings().size());
    for (size_t at = 0; mix.kv.size() == 1 && at < split[i]->embeddings().size(); ++at) {
      EXPECT_THAT(split[i]->embeddings()[at],
                  testing::Pointwise(testing::FloatNear(mix.gap), whole[i]->embeddings()[at]));
      ++embeddings;
    }
    const int64_t at = leaves_at(*split[i], *whole[i]);
    if (at >= 0 && whole[i]->gaps[static_cast<size_t>(at)] > mix.gap) {
      ++divergent;
      std::cout << mix.name << ": sample " << i << " leaves at token " << at << ", gap "
                << whole[i]->gaps[static_cast<size_t>(at)] << "\n";
    }
  }
  EXPECT_LE(divergent, mix.divergent);
  EXPECT_EQ(embeddings > 0, mix.kv.size() == 1);
}

TEST_F(EngineOnRanks, TextsAreThoseOfTheWholeModel) {
  for (const Mix& mix : mixes()) {
    SCOPED_TRACE(mix.name);
    auto engine = make(mix, &ranks(), true);
    ASSERT_TRUE(engine.ok()) << engine.status();
    if (ranks().rank() > 0) {
      (*engine)->follow();
    } else {
      auto whole = make(mix, nullptr, true).value();
      const auto begin = clock_;
      const Sinks expected = serve(*whole, mix);
      clock_ = begin;
      const Sinks sinks = serve(**engine, mix);
      expect_texts_of_the_whole_model(sinks, expected, mix);
      (*engine)->stop();
      const EngineStats stats = (*engine)->stats();
      EXPECT_GT(stats.preemptions, 0);
      EXPECT_GT(stats.cache_hit_tokens, 0);
      EXPECT_EQ(stats.pages_free, stats.pages_total) << "pages of the prefix cache count as free";
      EXPECT_EQ(stats.pages_total, whole->stats().pages_total);
      EXPECT_EQ(stats.cache.demoted_blocks > 0, !mix.ladder.empty());
      EXPECT_EQ(stats.kv_dropped_tokens > 0, mix.kv.size() > 1);
      if (mix.kv.size() == 1) {  // no lossy policy, so all heads keep equally many tokens
        EXPECT_EQ(counts(stats), counts(whole->stats()));
      }
    }
    const std::vector<int64_t> own = counts((*engine)->stats());
    std::vector<int64_t> all(own.size() * static_cast<size_t>(ranks().ranks()));
    ranks().all_gather(own, all);
    EXPECT_TRUE(std::equal(own.begin(), own.end(), all.begin())) << "ranks count alike";
  }
}

TEST_F(EngineOnRanks, UsageIsOfAllHeads) {
  const Mix mix{"policies", {kKvPresetF16, lossy_presets()[0], lossy_presets()[1]}, {}, 0, 0};
  auto engine = make(mix, &ranks(), false);
  ASSERT_TRUE(engine.ok()) << engine.status();
  if (ranks().rank() > 0) {
    (*engine)->follow();
    return;
  }
  auto whole = make(mix, nullptr, false).value();
  for (int32_t i = 0; i < 3; ++i) {
    std::vector<Finish::Kv> finished;
    for (Engine* each : {whole.get(), engine->get()}) {
      auto sink = std::make_shared<GapSink>();
      EngineRequest request = request_of(mix, 18);
      request.kv = mix.kv[static_cast<size_t>(i)];
      request.sinks = {sink};
      ASSERT_TRUE(each->submit(std::move(request)).ok());
      while (each->step()) {
      }
      finished.push_back(sink->finish()->kv);
    }
    const KvUsage& of_whole = finished[0].usage;
    const KvUsage& of_ranks = finished[1].usage;
    EXPECT_EQ(of_ranks.f16_bytes, of_whole.f16_bytes);
    EXPECT_EQ(of_ranks.kept.size(), of_whole.kept.size());
    EXPECT_NEAR(of_ranks.high, of_whole.high, 1);
    EXPECT_NEAR(of_ranks.low, of_whole.low, 1);
    EXPECT_NEAR(of_ranks.dropped, of_whole.dropped, 1);
    EXPECT_GT(of_ranks.low + of_ranks.dropped, i > 0 ? 1 : -1);
    // Thresholds keep different numbers of tokens in each head. They must match head by head.
    int32_t apart = 0;
    for (size_t head = 0; head < of_whole.kept.size(); ++head) {
      apart += std::abs(of_ranks.kept[head] - of_whole.kept[head]);
    }
    EXPECT_LE(apart, 2);
  }
  (*engine)->stop();
}

// Each rank keeps other tokens and frees other numbers of pages. A plan that differed would abort.
TEST_F(EngineOnRanks, TightenBudgetsAlike) {
  for (KvPreset preset : lossy_presets()) {
    // Most tokens stay, so that there is much to give.
    if (preset.policy.keep.is<KeepBudget>()) {
      preset.policy.budget().amount = KvAmount::of_share(0.9f);
    } else {
      preset.policy.thresholds().alpha_low = 0.1f;
    }
    SCOPED_TRACE(preset.name);
    const Mix mix{preset.name, {preset}, {}, 0, 0};
    auto engine = make(mix, &ranks(), true);
    ASSERT_TRUE(engine.ok()) << engine.status();
    if (ranks().rank() > 0) {
      (*engine)->follow();
    } else {
      Sinks sinks;
      for (int32_t i = 0; i < 6; ++i) {
        EngineRequest request = request_of(mix, i);
        request.grammar = nullptr;
        request.ignore_eos = true;
        request.max_tokens = kContext;
        request.deterministic = false;
        request.kv_floor = 0.2f;
        sinks.push_back(std::make_shared<GapSink>());
        request.sinks = {sinks.back()};
        ASSERT_TRUE((*engine)->submit(std::move(request)).ok());
      }
      while ((*engine)->step()) {
        static_cast<BatchingEngine&>(**engine).kv().check_integrity();
      }
      (*engine)->stop();
      EXPECT_GT((*engine)->stats().kv_tightenings, 0);
      EXPECT_EQ((*engine)->stats().pages_free, (*engine)->stats().pages_total);
    }
    const std::vector<int64_t> own = counts((*engine)->stats());
    std::vector<int64_t> all(own.size() * static_cast<size_t>(ranks().ranks()));
    ranks().all_gather(own, all);
    EXPECT_TRUE(std::equal(own.begin(), own.end(), all.begin())) << "ranks count alike";
  }
}

TEST_F(EngineOnRanks, BudgetsThatAreSpreadOverHeadsAreRefusedByName) {
  for (const char* name : {"replay-50", "kv-compress"}) {
    auto engine = make({name, {*find_kv_preset(name)}, {}, 0, 0}, &ranks(), false);
    EXPECT_EQ(engine.ok(), ranks().ranks() == 1) << engine.status();
    if (ranks().ranks() > 1) {
      const std::string message(engine.status().message());
      EXPECT_NE(message.find("allocator"), std::string::npos) << message;
      EXPECT_NE(message.find("ranks"), std::string::npos) << message;
    }
  }
}

TEST_F(EngineOnRanks, StoresOfEvictedBlocksAreRefusedByName) {
  KvTierOptions disk;
  disk.disk = directory_.path() / "kv";
  for (const KvTierOptions& tiers : {KvTierOptions{.host_bytes = int64_t{64} << 20}, disk}) {
    auto engine = make(mixes().front(), &ranks(), false, kContext, WeightFormat::f32, tiers);
    EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(engine.status().message().find("kv-host-memory and kv-disk serve one rank"),
              std::string::npos)
        << engine.status();
  }
}

TEST_F(EngineOnRanks, RanksThatWouldGoApartAreRefusedByName) {
  if (ranks().ranks() == 1) {
    GTEST_SKIP() << "one rank is alike";
  }
  const bool last = ranks().rank() + 1 == ranks().ranks();
  auto engine = make(mixes().front(), &ranks(), false, last ? 256 : kContext);
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(engine.status().message().find("context"), std::string::npos) << engine.status();
}

// bf16 and f16 have equal byte counts.
TEST_F(EngineOnRanks, RanksWithOtherWeightFormatsOfEqualBytesAreRefusedByName) {
  if (ranks().ranks() == 1) {
    GTEST_SKIP() << "one rank has one format";
  }
  const bool last = ranks().rank() + 1 == ranks().ranks();
  auto engine = make(mixes().front(), &ranks(), false, kContext,
                     last ? WeightFormat::f16 : WeightFormat::bf16);
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(engine.status().message().find("the format of the weights"), std::string::npos)
      << engine.status();
}

}  // namespace
}  // namespace tessera
