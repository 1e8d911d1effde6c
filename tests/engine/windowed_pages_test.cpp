// Layers with windows give back the pages that their queries have passed. Answers are those of the
// same model over a cache that keeps all pages.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "engine/batching_engine.h"
#include "engine/kv/kv_shape.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "models/weights/random_checkpoint.h"
#include "tests/engine/kv_named.h"
#include "tests/engine/recording_sink.h"
#include "tests/engine/small_model.h"
#include "tests/models/temporary_directory.h"

namespace tessera {
namespace {

class LogprobsOfTokens final : public RecordingSink {
 public:
  void on_logprobs(const TokenLogprobs& logprobs) override {
    numbers.push_back(logprobs.chosen.logprob);
  }
  std::vector<float> numbers;
};

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  int32_t cached = 0;
  int64_t bytes = 0;
};

// Each layer has a window, as in Mistral v0.1.
ModelConfig mistral(int32_t context, int32_t window) {
  ModelConfig config = small_model(context, "MistralForCausalLM");
  config.heads = 2;
  config.kv_heads = 1;
  config.sliding_window = window;
  return config;
}

// Five layers of six have a window, as in Gemma 3.
ModelConfig gemma(int32_t context, int32_t window) {
  ModelConfig config = small_model(context, "MinistralForCausalLM");
  config.layers = 6;
  config.sliding_window = window;
  config.layer_kinds.assign(6, {.windowed = true});
  config.layer_kinds.back().windowed = false;
  return config;
}

// The shape of Mistral's windows beside one layer that sees everything.
ModelConfig ministral(int32_t context, int32_t window) {
  ModelConfig config = mistral(context, window);
  config.architecture = "MinistralForCausalLM";
  config.layers = 3;
  config.layer_kinds = {{.windowed = true}, {.windowed = false}, {.windowed = true}};
  return config;
}

std::vector<int32_t> text(int32_t tokens, int32_t first = 0) {
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < tokens; ++i) {
    prompt.push_back(3 + (first + i * 31 + i / 7) % 94);
  }
  return prompt;
}

class WindowedPages : public testing::Test {
 protected:
  void write(const ModelConfig& config) {
    config_ = config;
    ASSERT_TRUE(write_random_checkpoint(directory_.path(), config, 5).ok());
  }

  // all_pages: no window ends, as the cache sees it, so it keeps everything.
  std::unique_ptr<BatchingEngine> engine(EngineOptions options, bool all_pages) {
    options.context = config_.context;
    auto model = Transformer::load(
        directory_.path(),
        {.weights = WeightFormat::f32, .limits = step_limits(options), .max_logits_rows = 5},
        backend_, threads_.stream());
    EXPECT_TRUE(model.ok()) << model.status();
    options.kv_ladder = options.kv_ladder.value_or(std::vector<KvFormat>{});
    KvCacheOptions cache = kv_cache_options(options, config_, backend_);
    for (int32_t& window : cache.windows) {
      window = all_pages && window > 0 ? 2 * config_.context : window;
    }
    auto kv = KvCache::create(cache, backend_, threads_.stream());
    EXPECT_TRUE(kv.ok()) << kv.status();
    (*model)->prepare((*kv)->view(), threads_.stream());
    options.kv_bytes = (*kv)->shape().total_bytes();
    Sampler sampler =
        Sampler::create(config_.vocab, (*model)->max_logits_rows(), backend_, threads_.stream())
            .value();
    return std::make_unique<BatchingEngine>(
        BatchingEngine::Parts{options, std::move(*model), std::move(*kv), nullptr,
                              std::move(sampler), nullptr, backend_, threads_.stream()});
  }

  // Returns: the answers of `samples` samples of each prompt, all of which run at once.
  static std::vector<Answer> ask(BatchingEngine& engine,
                                 const std::vector<std::vector<int32_t>>& prompts,
                                 int32_t max_tokens, int32_t samples = 1) {
    std::vector<std::shared_ptr<LogprobsOfTokens>> sinks;
    for (const std::vector<int32_t>& prompt : prompts) {
      EngineRequest request;
      request.prompt = prompt;
      request.max_tokens = max_tokens;
      request.ignore_eos = true;
      request.sampling.temperature = samples == 1 ? 0.0f : 1.0f;
      request.sampling.seed = 3;
      request.sampling.top_logprobs = 1;
      for (int32_t i = 0; i < samples; ++i) {
        sinks.push_back(std::make_shared<LogprobsOfTokens>());
        request.sinks.push_back(sinks.back());
      }
      EXPECT_TRUE(engine.submit(std::move(request)).ok());
    }
    while (engine.step()) {
      engine.kv().check_integrity();
    }
    std::vector<Answer> answers;
    for (const auto& sink : sinks) {
      answers.push_back({sink->tokens(), sink->numbers, sink->finish()->cached_tokens,
                         sink->finish()->kv.usage.bytes});
    }
    return answers;
  }

  // Sections of the layer without a window are compressed; the others hold what their windows see.
  void expect_windows_beside_sections(int32_t prompt) {
    const int32_t stored = prompt + 2;  // the last token is not stored
    const int32_t window = config_.sliding_window;
    for (const bool prefix_cache : {false, true}) {
      SCOPED_TRACE(prefix_cache ? "with a prefix cache" : "without");
      EngineOptions options;
      options.kv = *find_kv_preset("replay-50");
      options.max_sequences = 1;
      options.prefix_cache = prefix_cache;
      const auto freed = engine(options, false);
      const Answer answer = ask(*freed, {text(prompt)}, 3)[0];
      const KvArenaShape& shape = freed->kv().shape();
      const int32_t capacity = shape.layout(0).capacity;
      const int32_t section = options.kv.policy.section;
      const int32_t sections = stored / section;
      const int32_t closed = stored / kKvGroup * kKvGroup;
      const int32_t whole = (sections * section / 2 + closed - sections * section) / capacity;
      // The first position that a query at the last border of pages sees.
      const int32_t step = prefix_cache ? section : kKvGroup;
      const int32_t border = stored / step * step;
      const int32_t windowed = (closed - (border + 1 - window) / kKvGroup * kKvGroup) / capacity;
      const int64_t bytes =
          (shape.whole_rows() * whole + shape.windowed_rows() * windowed) * shape.page_bytes;
      EXPECT_EQ(answer.bytes, bytes + shape.slot_bytes());
      RecordProperty(prefix_cache ? "bytes_with_a_prefix_cache" : "bytes", std::to_string(bytes));
      if (prefix_cache) {
        const Answer again = ask(*freed, {text(prompt)}, 3)[0];
        EXPECT_EQ(again.cached, sections * section);
        expect_same({again}, {answer});
      } else {
        expect_same({answer}, ask(*engine(options, true), {text(prompt)}, 3));
      }
    }
  }

  static void expect_same(const std::vector<Answer>& answers, const std::vector<Answer>& others) {
    ASSERT_EQ(answers.size(), others.size());
    for (size_t i = 0; i < answers.size(); ++i) {
      EXPECT_EQ(answers[i].tokens, others[i].tokens) << "answer " << i;
      EXPECT_EQ(answers[i].logprobs, others[i].logprobs) << "answer " << i;
    }
  }

  const Backend& backend_ = cpu_backend(best_cpu_isa());
  ThreadPool threads_{2};
  TemporaryDirectory directory_;
  ModelConfig config_;
};

TEST_F(WindowedPages, AreAllThatASequenceOf32kTokensHolds) {
  constexpr int32_t kWindow = 4096;
  constexpr int32_t kPrompt = 32'000;
  constexpr int32_t kGenerated = 3;
  write(mistral(32'768, kWindow));
  for (const bool prefix_cache : {false, true}) {
    EngineOptions options;
    options.kv = *find_kv_preset("k8v4");
    options.max_sequences = 1;
    options.prefix_cache = prefix_cache;
    const auto freed = engine(options, false);
    const Answer answer = ask(*freed, {text(kPrompt)}, kGenerated)[0];
    // The last token is not stored. A window sees 4,096 positions, of which 64 groups are closed.
    const KvArenaShape& shape = freed->kv().shape();
    ASSERT_EQ(shape.layout(0).capacity, kKvGroup);
    EXPECT_EQ(answer.bytes, shape.slot_rows() * 64 * shape.page_bytes + shape.slot_bytes());
    // A whole context needs the window, and what a step adds to it.
    EXPECT_EQ(context_pages(shape), shape.slot_rows() * (64 + 64 + (prefix_cache ? 1 : 0)));
    if (!prefix_cache) {
      const auto kept = engine(options, true);
      const Answer all = ask(*kept, {text(kPrompt)}, kGenerated)[0];
      expect_same({answer}, {all});
      EXPECT_EQ(all.bytes,
                shape.slot_rows() * (kPrompt / kKvGroup) * shape.page_bytes + shape.slot_bytes());
    }
  }
}

// Memory for one whole context: sequences wait for each other, and cached prefixes lose windows.
TEST_F(WindowedPages, AnswerAsAllPagesDoWhereMemoryIsShort) {
  for (const int32_t window : {24, 100, 200}) {
    for (const bool alike : {false, true}) {
      SCOPED_TRACE(testing::Message() << "a window of " << window << (alike ? ", all layers" : ""));
      write(alike ? mistral(700, window) : gemma(700, window));
      EngineOptions options;
      options.kv = *find_kv_preset("k8v4");
      options.max_sequences = 4;
      options.max_step_tokens = 150;
      const auto kept = engine(options, true);
      std::vector<std::vector<int32_t>> prompts;
      for (const int32_t length : {600, 130, 400, 64, 320, 500}) {
        prompts.push_back(text(length, length % 3));
      }
      const std::vector<Answer> expected = ask(*kept, prompts, 190);
      options.context = config_.context;
      KvArenaShape shape = shape_of(kv_cache_options(options, config_, backend_)).value();
      shape.pages = static_cast<int32_t>(context_pages(shape));
      options.kv_bytes = shape.total_bytes();
      const auto freed = engine(options, false);
      for (int32_t round = 0; round < 3; ++round) {
        expect_same(ask(*freed, prompts, 190), expected);
      }
    }
  }
}

TEST_F(WindowedPages, AreCopiedForSamples) {
  for (const int32_t max_sequences : {2, 8}) {  // with two slots, later samples come too late
    write(gemma(500, 100));
    EngineOptions options;
    options.kv = *find_kv_preset("k8v4");
    options.max_sequences = max_sequences;
    const auto kept = engine(options, true);
    const auto freed = engine(options, false);
    for (const int32_t length : {40, 128, 333}) {
      SCOPED_TRACE(testing::Message() << max_sequences << " sequences, " << length << " tokens");
      expect_same(ask(*freed, {text(length)}, 140, 4), ask(*kept, {text(length)}, 140, 4));
    }
  }
}

// A chat goes on where it ended; another text leaves it in the middle.
TEST_F(WindowedPages, AreFoundWherePromptsPart) {
  write(gemma(700, 100));
  EngineOptions options;
  options.kv = *find_kv_preset("k8v4");
  options.max_sequences = 2;
  const auto freed = engine(options, false);
  ask(*freed, {text(600)}, 1);
  std::vector<int32_t> other = text(300);
  other.resize(450, 5);
  const std::vector<Answer> answers = ask(*freed, {other, text(650)}, 20);
  EXPECT_EQ(answers[0].cached, 256);
  EXPECT_EQ(answers[1].cached, 576);
  const auto kept = engine(options, true);
  expect_same(answers, ask(*kept, {other, text(650)}, 20));
}

// The ladder demotes the pages of the layer without a window.
TEST_F(WindowedPages, StayAsTheyAreWhereTheLadderDemotes) {
  write(gemma(700, 100));
  EngineOptions options;
  options.kv = *find_kv_preset("k8v4");
  options.kv_ladder = std::vector<KvFormat>{kKvK4V2};
  options.max_sequences = 2;
  options.context = config_.context;
  KvArenaShape shape = shape_of(kv_cache_options(options, config_, backend_)).value();
  shape.pages = static_cast<int32_t>(context_pages(shape) * 2);
  options.kv_bytes = shape.total_bytes();
  const auto freed = engine(options, false);
  int32_t cached = 0;
  for (const int32_t i : {0, 1, 2, 3, 3, 2, 1, 0, 0, 1, 2, 3}) {
    cached += ask(*freed, {text(400 + 64 * i, i)}, 5)[0].cached;
  }
  EXPECT_GT(freed->stats().cache.demoted_blocks, 0);
  EXPECT_GT(cached, 0);
}

TEST_F(WindowedPages, AreAllThatLayersHoldBesideSectionsOfReplay50) {
  write(gemma(8192, 700));
  expect_windows_beside_sections(6000);
}

TEST_F(WindowedPages, AreAllThatLayersOf32kTokensHoldBesideSectionsOfReplay50) {
  write(ministral(32'768, 4096));
  expect_windows_beside_sections(32'000);
}

// Memory for one whole context. A hit has the bits of a miss, also where windows were dropped.
TEST_F(WindowedPages, AnswerAsAllPagesDoBesideSections) {
  for (const int32_t window : {24, 100, 300}) {
    for (const char* const like : {"replay-50", kReplaying}) {
      SCOPED_TRACE(testing::Message() << "a window of " << window << ", " << like);
      write(gemma(900, window));
      EngineOptions options;
      options.kv = short_sections(128, like);
      options.max_sequences = 4;
      options.max_step_tokens = 150;
      const auto kept = engine(options, true);
      std::vector<std::vector<int32_t>> prompts;
      for (const int32_t length : {600, 130, 400, 64, 320, 500}) {
        prompts.push_back(text(length, length % 3));
      }
      const std::vector<Answer> expected = ask(*kept, prompts, 190);
      options.context = config_.context;
      KvArenaShape shape = shape_of(kv_cache_options(options, config_, backend_)).value();
      shape.pages = static_cast<int32_t>(context_pages(shape));
      options.kv_bytes = shape.total_bytes();
      const auto freed = engine(options, false);
      int32_t cached = 0;
      for (int32_t round = 0; round < 3; ++round) {
        const std::vector<Answer> answers = ask(*freed, prompts, 190);
        expect_same(answers, expected);
        for (const Answer& answer : answers) cached += answer.cached;
      }
      EXPECT_GT(cached, 0);
    }
  }
}

TEST_F(WindowedPages, AreCopiedForSamplesBesideSections) {
  write(gemma(700, 100));
  EngineOptions options;
  options.kv = short_sections(128, "replay-50");
  options.max_sequences = 8;
  const auto kept = engine(options, true);
  const auto freed = engine(options, false);
  for (const int32_t length : {40, 128, 333}) {
    SCOPED_TRACE(testing::Message() << length << " tokens");
    expect_same(ask(*freed, {text(length)}, 140, 4), ask(*kept, {text(length)}, 140, 4));
  }
}

TEST_F(WindowedPages, AreNotServedBesideOtherPoliciesThatDropTokens) {
  const auto refusal = [&](const ModelConfig& config, const char* preset) {
    EngineOptions options;
    options.context = config.context;
    options.max_sequences = 1;
    options.kv = *find_kv_preset(preset);
    options.kv_ladder = std::vector<KvFormat>{};
    const auto made =
        KvCache::create(kv_cache_options(options, config, backend_), backend_, threads_.stream());
    return std::string(made.status().message());
  };
  EXPECT_THAT(refusal(mistral(700, 100), "replay-50"), testing::HasSubstr("there are none"));
  EXPECT_EQ(refusal(gemma(2048, 100), "replay-50"), "");
  EXPECT_THAT(refusal(gemma(700, 100), "snapkv"), testing::HasSubstr("such as replay-50"));
}

}  // namespace
}  // namespace tessera
