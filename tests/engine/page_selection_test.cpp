// Generated tokens that read selected pages, through the engine. Runs a real transformer with
// random weights.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "engine/engine.h"
#include "engine/kv/kv_presets.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "kernels/kv/whole_layers.h"
#include "models/weights/random_checkpoint.h"
#include "tests/engine/batching_engine_of.h"
#include "tests/engine/kv_memory.h"
#include "tests/engine/recording_sink.h"
#include "tests/engine/small_model.h"
#include "tests/kernels/isas.h"
#include "tests/models/temporary_directory.h"

namespace tessera {
namespace {

// Reads four tiles, of up to ten.
KvPreset few_tiles() {
  KvPreset preset = *find_kv_preset("k8v4-quest");
  preset.policy.all().read_tokens = kMinReadTokens;
  return preset;
}

// Returns: the log probabilities of the chosen tokens.
std::vector<float> numbers_of(const std::shared_ptr<RecordingSink>& sink) {
  std::vector<float> numbers;
  for (const TokenLogprob& one : sink->chosen_logprobs()) {
    numbers.push_back(static_cast<float>(one.token));
    numbers.push_back(one.logprob);
  }
  return numbers;
}

class PageSelection : public testing::Test {
 protected:
  static constexpr int32_t kSelectedContext = 700;

  // The first two layers read everything, the other two select.
  static ModelConfig model() {
    ModelConfig config = small_model(kSelectedContext);
    config.layers = kWholeLayers + 2;
    return config;
  }

  void SetUp() override {
    ASSERT_TRUE(write_random_checkpoint(directory_.path(), model(), 5).ok());
  }

  struct Shape {
    int32_t sequences = 8;
    int32_t chunk = 128;
    bool scarce = false;  // pages for one context only
    bool cache = false;
  };

  std::unique_ptr<Engine> engine(const Shape& shape) {
    const Backend& backend = cpu_backend(isas_of_this_machine().back());
    EngineOptions options;
    options.max_step_tokens = shape.chunk;
    options.max_sequences = shape.sequences;
    options.context = kSelectedContext;
    options.kv = few_tiles();
    options.kv_also = {*find_kv_preset("k8v4")};
    options.kv_ladder = std::vector<KvFormat>{};
    options.prefix_cache = shape.cache;
    if (shape.scarce) {
      const KvCacheOptions kv = kv_cache_options(options, model(), backend);
      options.kv_bytes = kv_memory(kv, context_row_pages(kv));
    }
    return engine_of({.directory = directory_.path(), .logits_rows = 8}, options, backend,
                     threads_.stream());
  }

  static EngineRequest request(int32_t prompt_tokens, uint32_t seed, int32_t max_tokens = 130) {
    std::mt19937 random(seed);
    EngineRequest request;
    for (int32_t i = 0; i < prompt_tokens; ++i) {
      request.prompt.push_back(3 + static_cast<int32_t>(random() % 94));
    }
    request.max_tokens = max_tokens;
    request.ignore_eos = true;
    request.sampling.temperature = 0;
    request.sampling.top_logprobs = 0;
    return request;
  }

  using Sink = std::shared_ptr<RecordingSink>;

  static std::vector<Sink> submit(Engine& engine, EngineRequest request, int samples = 1) {
    for (int i = 0; i < samples; ++i) {
      request.sinks.push_back(std::make_shared<RecordingSink>());
    }
    std::vector<Sink> sinks;
    for (const auto& sink : request.sinks) {
      sinks.push_back(std::static_pointer_cast<RecordingSink>(sink));
    }
    EXPECT_TRUE(engine.submit(std::move(request)).ok());
    return sinks;
  }
  static Sink ask(Engine& engine, const EngineRequest& request) {
    const Sink sink = submit(engine, request).front();
    while (engine.step()) {
    }
    return sink;
  }

  ThreadPool threads_{2};
  TemporaryDirectory directory_;
};

TEST_F(PageSelection, ChangesOnlyWhatIsGenerated) {
  const auto engine = this->engine({});
  EngineRequest few = request(500, 1);
  EngineRequest all = few;
  all.kv = *find_kv_preset("k8v4");
  const Sink selected = ask(*engine, few);
  const Sink whole = ask(*engine, all);
  EXPECT_EQ(numbers_of(selected)[1], numbers_of(whole)[1]) << "of the prompt";
  EXPECT_NE(numbers_of(selected), numbers_of(whole));
  few.kv = few_tiles();
  few.kv->policy.all().read_tokens = kSelectedContext;
  EXPECT_EQ(numbers_of(ask(*engine, few)), numbers_of(whole)) << "reads all tiles";
}

TEST_F(PageSelection, HasTheSameTextInABatchInChunksAndAfterPreemption) {
  const std::vector<int32_t> prompts{270, 300, 261, 319, 320, 20};
  std::vector<std::vector<float>> alone;
  const auto quiet = engine({});
  for (size_t i = 0; i < prompts.size(); ++i) {
    alone.push_back(numbers_of(ask(*quiet, request(prompts[i], static_cast<uint32_t>(i)))));
  }
  for (const Shape& shape : {Shape{8, 512}, Shape{8, 40}, Shape{8, 128, true}}) {
    const auto engine = this->engine(shape);
    std::vector<Sink> sinks;
    for (size_t i = 0; i < prompts.size(); ++i) {
      const auto samples =
          submit(*engine, request(prompts[i], static_cast<uint32_t>(i)), i == 1 ? 2 : 1);
      EXPECT_FALSE(samples.empty());
      sinks.push_back(samples.back());
    }
    while (engine->step()) {
    }
    EXPECT_EQ(engine->stats().preemptions > 0, shape.scarce);
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(numbers_of(sinks[i]), alone[i]) << "prompt " << i << ", chunks of " << shape.chunk;
    }
  }
}

TEST_F(PageSelection, SharesPromptsAndNothingGenerated) {
  const auto engine = this->engine({.cache = true});
  const int32_t block = engine->stats().prefix_block_tokens;
  const EngineRequest first = request(330, 7, 200);
  const Sink answer = ask(*engine, first);
  EngineRequest next = first;
  const std::vector<int32_t> generated = answer->tokens();
  next.prompt.insert(next.prompt.end(), generated.begin(), generated.end());
  next.max_tokens = 30;
  const Sink turn = ask(*engine, next);
  EXPECT_EQ(turn->finish()->cached_tokens, 330 / block * block);
  EXPECT_EQ(numbers_of(turn), numbers_of(ask(*this->engine({}), next)));

  EngineRequest whole = next;
  whole.kv = *find_kv_preset("k8v4");
  const Sink shared = ask(*engine, whole);
  EXPECT_EQ(shared->finish()->cached_tokens, 529 / block * block);
  EXPECT_EQ(numbers_of(shared), numbers_of(ask(*this->engine({}), whole)));
}

// A prompt with the same text has cached its blocks. Its tokens have read everything.
TEST_F(PageSelection, ComputesItsOwnTextAgainAfterPreemption) {
  EngineRequest few = request(270, 11);
  const Sink alone = ask(*this->engine({}), few);
  EngineRequest whole = few;
  whole.kv = *find_kv_preset("k8v4");
  const std::vector<int32_t> generated = alone->tokens();
  whole.prompt.insert(whole.prompt.end(), generated.begin(), generated.end());
  whole.max_tokens = 1;

  const auto engine = this->engine({.sequences = 1, .cache = true});
  const int32_t block = engine->stats().prefix_block_tokens;
  ask(*engine, whole);
  few.priority = 1;
  const Sink sink = submit(*engine, few).front();
  while (sink->tokens().size() < 120) {
    ASSERT_TRUE(engine->step());
  }
  submit(*engine, request(20, 12, 3));  // takes the only slot
  while (engine->step()) {
  }
  EXPECT_EQ(engine->stats().preemptions, 1);
  EXPECT_EQ(numbers_of(sink), numbers_of(alone));
  EXPECT_EQ(ask(*engine, whole)->finish()->cached_tokens, 399 / block * block) << "still cached";
}

TEST_F(PageSelection, IsRefusedForDeterministicRequestsByName) {
  const auto engine = this->engine({});
  EngineRequest wanted = request(10, 1);
  wanted.deterministic = true;
  wanted.sinks = {std::make_shared<RecordingSink>()};
  const auto refused = engine->submit(wanted);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(refused.status().message()),
      testing::AllOf(testing::HasSubstr("deterministic"), testing::HasSubstr("read_share 0.25")));
  wanted.kv = *find_kv_preset("k8v4");
  EXPECT_TRUE(engine->submit(wanted).ok());
  while (engine->step()) {
  }
}

}  // namespace
}  // namespace tessera
