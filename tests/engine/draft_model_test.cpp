// A second model that drafts tokens, over real transformers with random weights. No text changes.

#include "engine/draft_model.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/batching_engine.h"
#include "engine/kv/kv_presets.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "models/weights/random_checkpoint.h"
#include "tests/engine/even_grammar.h"
#include "tests/engine/kv_memory.h"
#include "tests/engine/kv_named.h"
#include "tests/engine/recording_sink.h"
#include "tests/engine/small_model.h"
#include "tests/models/temporary_directory.h"

namespace tessera {
namespace {

// Whether the second model is the first one, so that most of its drafts are right, or another.
enum class Drafter : uint8_t { none, same, other };

struct Drafted {
  std::vector<std::vector<int32_t>> texts;
  EngineStats stats;
};

class DraftModelTest : public testing::Test {
 protected:
  static constexpr int32_t kContext = 384;

  void SetUp() override {
    ASSERT_TRUE(write_random_checkpoint(model_, small_model(kContext), 5).ok());
    ModelConfig smaller = small_model(kContext);
    smaller.layers = 1;
    smaller.vocab = 101;  // padded further than the first model's
    ASSERT_TRUE(write_random_checkpoint(other_, smaller, 6).ok());
    options_.context = kContext;
    options_.max_sequences = 4;
    options_.max_step_tokens = 48;
    options_.speculation = true;
    options_.draft_step_cost = 0.05f;  // by weights, a model that is as large would draft nothing
    options_.kv_ladder = std::vector<KvFormat>{};
  }

  std::unique_ptr<Transformer> load(const std::filesystem::path& path, const StepLimits& limits) {
    auto loaded = Transformer::load(path, {.weights = WeightFormat::f32, .limits = limits},
                                    backend_, threads_.stream());
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return std::move(loaded).value();
  }
  std::unique_ptr<Engine> engine(Drafter drafter) {
    std::unique_ptr<Transformer> draft;
    if (drafter != Drafter::none) {
      draft = load(drafter == Drafter::same ? model_ : other_, DraftModel::limits(options_));
    }
    auto made = Engine::create(options_, load(model_, step_limits(options_)), backend_,
                               threads_.stream(), std::move(draft));
    EXPECT_TRUE(made.ok()) << made.status();
    return std::move(made).value();
  }

  static EngineRequest request(int32_t tokens, int32_t seed, int32_t answer = 60) {
    EngineRequest made;
    for (int32_t i = 0; i < tokens; ++i) {
      made.prompt.push_back(3 + (seed * 31 + i * 17 + i * i * (seed + 1)) % 94);
    }
    made.max_tokens = answer;
    made.ignore_eos = true;
    made.sampling.temperature = 0;
    made.sampling.seed = static_cast<uint64_t>(seed);
    return made;
  }

  // Submits all requests at once, `samples` samples of each.
  Drafted run(Drafter drafter, std::vector<EngineRequest> requests, int32_t samples = 1) {
    const auto made = engine(drafter);
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    for (EngineRequest& one : requests) {
      for (int32_t i = 0; i < samples; ++i) {
        sinks.push_back(std::make_shared<RecordingSink>());
        one.sinks.push_back(sinks.back());
      }
      EXPECT_TRUE(made->submit(std::move(one)).ok());
    }
    while (made->step()) {
    }
    Drafted found{.texts = {}, .stats = made->stats()};
    for (const auto& sink : sinks) found.texts.push_back(sink->tokens());
    return found;
  }

  // Checks that neither model changes a text.
  // Returns: what the engine counted with the same model.
  EngineStats expect_unchanged(const std::vector<EngineRequest>& requests, int32_t samples = 1) {
    const Drafted plain = run(Drafter::none, requests, samples);
    const Drafted same = run(Drafter::same, requests, samples);
    const Drafted other = run(Drafter::other, requests, samples);
    EXPECT_EQ(same.texts, plain.texts);
    EXPECT_EQ(other.texts, plain.texts);
    EXPECT_GT(same.stats.drafts, plain.stats.drafts);
    EXPECT_GT(other.stats.drafts, plain.stats.drafts);
    EXPECT_LT(same.stats.steps, plain.stats.steps);
    return same.stats;
  }

  const Backend& backend_ = cpu_backend(best_cpu_isa());
  ThreadPool threads_{2};
  TemporaryDirectory directory_;
  std::filesystem::path model_ = directory_.path() / "model";
  std::filesystem::path other_ = directory_.path() / "other";
  EngineOptions options_;
};

TEST_F(DraftModelTest, ChangesNoGreedyTextAndIsMostlyRightIfItIsTheSameModel) {
  const EngineStats stats = expect_unchanged({request(70, 1, 200)});
  EXPECT_GT(stats.accepted_tokens, stats.drafted_tokens / 2);
}

TEST_F(DraftModelTest, ChangesNoSampledTextOfSeveralRequestsAndSamples) {
  std::vector<EngineRequest> requests = {request(20, 1), request(90, 2)};
  for (EngineRequest& one : requests) {
    one.sampling.temperature = 0.8f;
    one.sampling.top_p = 0.9f;
  }
  expect_unchanged(requests, 2);
}

TEST_F(DraftModelTest, FollowsAGrammar) {
  EngineRequest constrained = request(40, 3, 120);
  constrained.ignore_eos = false;
  constrained.grammar = std::make_shared<EvenGrammar>(100, 2);
  const EngineStats stats = expect_unchanged({constrained});
  // A draft of the same model that the grammar did not mask would often be refused.
  EXPECT_GT(stats.accepted_tokens, stats.drafted_tokens / 2);
}

TEST_F(DraftModelTest, CatchesUpWithALongPromptAndWithPrefixesOfTheCache) {
  expect_unchanged({request(250, 4, 100)});
  // The second request's prompt is cached, for the first model alone.
  const auto ask = [&](Drafter drafter) {
    const auto made = engine(drafter);
    std::vector<std::vector<int32_t>> texts;
    for (int32_t i = 0; i < 2; ++i) {
      EngineRequest one = request(250, 4, 100);
      const auto sink = std::make_shared<RecordingSink>();
      one.sinks = {sink};
      EXPECT_TRUE(made->submit(std::move(one)).ok());
      while (made->step()) {
      }
      EXPECT_EQ(sink->finish()->cached_tokens > 0, i > 0);
      texts.push_back(sink->tokens());
    }
    return texts;
  };
  EXPECT_EQ(ask(Drafter::same), ask(Drafter::none));
}

TEST_F(DraftModelTest, ChangesNoTextOfPreemptedSequences) {
  const KvCacheOptions kv = kv_cache_options(options_, small_model(kContext), backend_);
  options_.kv_bytes = kv_memory(kv, context_row_pages(kv));
  std::vector<EngineRequest> requests;
  for (int32_t i = 0; i < 4; ++i) requests.push_back(request(100, i, 150));
  const EngineStats stats = expect_unchanged(requests);
  EXPECT_GT(stats.preemptions, 0);
}

TEST_F(DraftModelTest, ServesMoreSequencesThanItHasRoomFor) {
  options_.max_sequences = 2 * DraftModel::kSequences;
  std::vector<EngineRequest> requests;
  for (int32_t i = 0; i < 2 * DraftModel::kSequences; ++i) {
    requests.push_back(request(10 + i, i, 20 + 10 * i));
  }
  expect_unchanged(requests);
}

TEST_F(DraftModelTest, LeavesARequestAloneThatAsksForIt) {
  EngineRequest plain = request(70, 1);
  plain.speculation = false;
  EXPECT_EQ(run(Drafter::same, {plain}).stats.drafts, 0);
}

TEST_F(DraftModelTest, RefusesAModelOfAShorterContextWithTheNumbers) {
  ASSERT_TRUE(write_random_checkpoint(directory_.path() / "short", small_model(128), 7).ok());
  EngineOptions shorter = options_;
  shorter.context = 128;
  const auto made =
      Engine::create(options_, load(model_, step_limits(options_)), backend_, threads_.stream(),
                     load(directory_.path() / "short", DraftModel::limits(shorter)));
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.status().message().find("made for 128 tokens"), std::string::npos)
      << made.status();
}

TEST(DraftLength, FollowsWhatWasChosenAndTheCostOfAStep) {
  DraftLength length;
  const int32_t begin = length.choose(0.1f);
  EXPECT_GT(begin, 0);
  EXPECT_GE(DraftLength().choose(0.02f), begin);
  EXPECT_EQ(DraftLength().choose(2), 0);
  for (int i = 0; i < 50; ++i) length.learn(4, 4);
  EXPECT_GT(length.choose(0.1f), begin);
  for (int i = 0; i < 100; ++i) length.learn(4, 0);
  EXPECT_EQ(length.choose(0.1f), 0);
  for (int i = 0; i < 300; ++i) length.rest();
  EXPECT_GT(length.choose(0.1f), 0) << "tried again";
}

}  // namespace
}  // namespace tessera
