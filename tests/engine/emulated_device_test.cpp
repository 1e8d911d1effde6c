// The whole engine over the emulated CUDA backend. Weights, activations and pages are in memory
// that the host cannot access (tests/kernels/cuda/emulator/emulated_memory.h).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "engine/engine.h"
#include "engine/kv/kv_presets.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "kernels/cuda/cuda_backend.h"
#include "models/weights/random_checkpoint.h"
#include "tests/engine/batching_engine_of.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/kv_memory.h"
#include "tests/engine/kv_named.h"
#include "tests/engine/recording_sink.h"
#include "tests/engine/small_model.h"
#include "tests/models/temporary_directory.h"

namespace tessera {
namespace {

constexpr int32_t kContext = 256;

struct Case {
  std::string name;
  WeightFormat weights = WeightFormat::f32;
  KvPreset kv = kKvPresetF16;
  double bound = 0;     // max difference of a log probability from the CPU's
  bool scarce = false;  // pages for one context only
  bool shares = false;  // shares prefixes
  std::vector<KvFormat> ladder = {};
};

struct Served {
  std::vector<std::vector<int32_t>> texts;
  std::vector<std::vector<TokenLogprob>> logprobs;  // prompt tokens, then generated tokens
  EngineStats stats;
};

class EmulatedDevice : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(write_random_checkpoint(directory_.path(), small_model(kContext), 11).ok());
  }

  int64_t kv_bytes(const EngineOptions& options) const {
    const ModelConfig config = small_model(kContext);
    const KvCacheOptions kv{.preset = options.kv,
                            .also = {},
                            .prefix_cache = options.prefix_cache,
                            .ladder = GetParam().ladder,
                            .layers = config.layers,
                            .kv_heads = config.kv_heads,
                            .head_dim = config.head_dim,
                            .slots = options.max_sequences,
                            .context = kContext};
    return GetParam().scarce ? kv_memory(kv, context_row_pages(kv)) : 0;
  }

  Served serve(const Backend& backend, Stream stream, int32_t sequences) {
    EngineOptions options;
    options.max_step_tokens = sequences > 1 ? 48 : 37;
    options.max_sequences = sequences;
    options.max_queue = 64;
    options.context = kContext;
    options.kv = GetParam().kv;
    options.kv_ladder = GetParam().ladder;
    options.kv_bytes = kv_bytes(options);
    const auto engine = engine_of({.directory = directory_.path(), .weights = GetParam().weights},
                                  options, backend, stream);
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    for (EngineRequest& request : requests()) {
      sinks.push_back(std::make_shared<RecordingSink>());
      request.sinks.push_back(sinks.back());
      EXPECT_TRUE(engine->submit(std::move(request)).ok());
    }
    while (engine->step()) {
    }
    Served served;
    for (const auto& sink : sinks) {
      EXPECT_EQ(sink->finish()->reason, FinishReason::length);
      served.texts.push_back(sink->tokens());
      served.logprobs.push_back(sink->prompt_logprobs());
      for (const TokenLogprob& chosen : sink->chosen_logprobs()) {
        served.logprobs.back().push_back(chosen);
      }
    }
    served.stats = engine->stats();
    EXPECT_EQ(served.stats.pages_free, served.stats.pages_total);
    return served;
  }

  // The first 70 tokens of all prompts are equal: one prefix block. The first two requests ask for
  // prompt log probabilities, which are computed even for cached tokens.
  static std::vector<EngineRequest> requests() {
    std::vector<EngineRequest> requests(5);
    for (int32_t i = 0; i < 5; ++i) {
      EngineRequest& request = requests[static_cast<size_t>(i)];
      for (int32_t j = 0; j < 74 + 17 * i; ++j) {
        request.prompt.push_back(3 + (j * 17 + j * j + (j < 70 ? 0 : i)) % 94);
      }
      request.max_tokens = GetParam().scarce ? 100 : 40;
      request.ignore_eos = true;
      request.deterministic = !GetParam().shares;
      request.sampling.temperature = 0;
      request.sampling.top_logprobs = 0;
      if (i >= 3 && GetParam().weights == WeightFormat::f32) {
        request.sampling.temperature = 0.8f;
        request.sampling.top_p = 0.9f;
        request.sampling.top_k = i == 3 ? 0 : 40;
        request.sampling.frequency_penalty = 0.3f;
        // one request with top log probabilities, one without
        request.sampling.top_logprobs = i - 3;
      }
      if (i < 2) {
        request.sampling.prompt_logprobs = 0;
      }
    }
    return requests;
  }

  ThreadPool threads_{1};
  TemporaryDirectory directory_;
};

// Prompts are teacher-forced. Texts are compared up to the first different token; there, both
// tokens must be equally likely within the bound.
TEST_P(EmulatedDevice, ServesWhatTheCpuServes) {
  const Served cpu = serve(cpu_backend(CpuIsa::scalar), threads_.stream(), 4);
  const Served device = serve(cuda_backend(), {}, 4);
  double largest = 0;
  int32_t compared = 0;
  int32_t all = 0;
  for (size_t i = 0; i < cpu.logprobs.size(); ++i) {
    const auto& one = cpu.logprobs[i];
    const auto& other = device.logprobs[i];
    ASSERT_EQ(other.size(), one.size());
    all += static_cast<int32_t>(one.size());
    for (size_t t = 0; t < one.size(); ++t) {
      const double difference = std::abs(double{one[t].logprob} - other[t].logprob);
      largest = std::max(largest, difference);
      ASSERT_LE(difference, 2 * GetParam().bound) << "request " << i << " token " << t;
      ++compared;
      if (one[t].token != other[t].token) {
        break;
      }
    }
  }
  RecordProperty("largest_difference", std::to_string(largest));
  RecordProperty("compared", compared);
  EXPECT_GE(compared, all / 2);
  EXPECT_EQ(device.stats.preemptions, cpu.stats.preemptions);
  EXPECT_EQ(device.stats.cache_hit_tokens, cpu.stats.cache_hit_tokens);
  EXPECT_EQ(device.stats.kv_demotions, cpu.stats.kv_demotions);
  EXPECT_EQ(device.stats.kv_dropped_tokens, cpu.stats.kv_dropped_tokens);
  EXPECT_EQ(device.stats.preemptions > 0, GetParam().scarce);
  EXPECT_EQ(device.stats.kv_demotions + device.stats.kv_dropped_tokens > 0,
            GetParam().kv.policy.is_lossy());
}

// Equal logits must give equal text.
TEST(EmulatedDeviceSamples, WhatTheCpuSamples) {
  static const Backend device = [] {
    Backend mixed = cpu_backend(CpuIsa::scalar);
    mixed.sample_scratch_bytes = cuda_backend().sample_scratch_bytes;
    mixed.sample = [](const SampleArgs& args, Stream stream) {
      cuda_backend().sample(args, stream);
      cuda_backend().memory->wait(stream);  // the CPU's ops, and so the engine, never wait
    };
    return mixed;
  }();
  EngineOptions options;
  options.context = 128;
  options.max_sequences = 3;
  options.max_step_tokens = 40;
  options.max_queue = 16;
  options.kv = kKvPresetF32;
  ThreadPool threads(1);
  auto engine = Engine::create(options, std::make_unique<FakeModel>(options.context), device,
                               threads.stream())
                    .value();
  std::vector<EngineRequest> requests;
  for (int32_t i = 0; i < 6; ++i) {
    EngineRequest request = request_of(prompt_of(5 + 9 * i, i), 12);
    request.sampling.seed = static_cast<uint64_t>(i);
    request.sampling.temperature = i == 0 ? 0.0f : 0.5f * static_cast<float>(i);
    request.sampling.top_p = i % 2 == 0 ? 1.0f : 0.8f;
    request.sampling.top_k = i % 3 == 0 ? 0 : 9;
    request.sampling.min_p = i == 4 ? 0.05f : 0.0f;
    request.sampling.repetition_penalty = i == 5 ? 1.2f : 1.0f;
    request.sampling.presence_penalty = i == 3 ? 0.5f : 0.0f;
    requests.push_back(request);
  }
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (EngineRequest request : requests) {
    sinks.push_back(std::make_shared<RecordingSink>());
    request.sinks = {sinks.back()};
    ASSERT_TRUE(engine->submit(std::move(request)).ok());
  }
  while (engine->step()) {
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(sinks[i]->tokens(), run_alone(requests[i], options.context).tokens)
        << "request " << i;
  }
}

// Products of fp8 need sides that are multiples of 16, and a model is asked about by its own sides.
TEST(EmulatedDeviceServes, Fp8WhereTheSidesOfAModelFit) {
  TemporaryDirectory directory;
  const auto load = [&](ModelConfig config) {
    EXPECT_TRUE(write_random_checkpoint(directory.path(), config, 11).ok());
    return Transformer::load(directory.path(),
                             {.weights = WeightFormat::fp8, .limits = {8, 1, kContext}},
                             cuda_backend(), {})
        .status();
  };
  ModelConfig config = small_model(kContext);
  config.vocab = 160;
  EXPECT_TRUE(load(config).ok()) << load(config);
  config.vocab = 150;
  EXPECT_THAT(load(config).message(), testing::HasSubstr("has no kernels for weights of fp8"));
}

TEST(EmulatedDeviceRefuses, WeightsAndHeadDimensionsWithoutKernels) {
  TemporaryDirectory directory;
  ModelConfig config = small_model(kContext);
  config.head_dim = 24;
  ASSERT_TRUE(write_random_checkpoint(directory.path(), config, 11).ok());
  const auto load = [&](WeightFormat weights) {
    return Transformer::load(directory.path(), {.weights = weights, .limits = {8, 1, kContext}},
                             cuda_backend(), {});
  };
  EXPECT_EQ(load(WeightFormat::int8).status().message(),
            "weights: the backend cuda has no kernels for weights of int8");
  auto model = load(WeightFormat::f32);
  ASSERT_TRUE(model.ok());
  EngineOptions options;
  options.max_step_tokens = 8;
  options.max_sequences = 1;
  options.context = kContext;
  options.kv = *find_kv_preset("k8v4");
  const auto engine = Engine::create(options, std::move(model).value(), cuda_backend(), {});
  EXPECT_EQ(engine.status().message(),
            "KV cache: the backend cuda has no kernels for pages of k8v4 with a head dimension of "
            "24");
}

// Text must not depend on scheduling, as on the CPU.
TEST_P(EmulatedDevice, GivesTheSameTextAloneAndInABatch) {
  if (GetParam().shares) {
    GTEST_SKIP() << "prefix hits depend on the order of the requests";
  }
  EXPECT_EQ(serve(cuda_backend(), {}, 4).texts, serve(cuda_backend(), {}, 1).texts);
}

INSTANTIATE_TEST_SUITE_P(
    All, EmulatedDevice,
    testing::Values(
        Case{.name = "f16", .bound = 1e-4},
        // Prefixes are matched, and demoted before any sequence is preempted.
        Case{.name = "bf16_weights_k8v4_scarce",
             .weights = WeightFormat::bf16,
             .kv = *find_kv_preset("k8v4"),
             .bound = 3e-2,
             .scarce = true,
             .shares = true,
             .ladder = {kKvK4V2}},
        // A token whose score is near the threshold of a tier may get the other one by rounding.
        Case{.name = "leankv_scarce", .kv = lossy("leankv"), .bound = 3e-3, .scarce = true},
        Case{.name = "all_queries", .kv = lossy(kAllQueries), .bound = 1e-4},
        Case{.name = "s50", .kv = *find_kv_preset("s50"), .bound = 1e-3},
        Case{.name = "mustafar_scarce", .kv = output_aware(), .bound = 1e-3, .scarce = true}),
    [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace tessera
