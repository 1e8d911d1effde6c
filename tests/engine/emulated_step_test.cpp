// Device calls of an engine step on the emulated device: host waits, kernel launches and
// recordings. Recorded steps must give the same bits as unrecorded ones, also with sums over ranks.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "engine/batching_engine.h"
#include "engine/kv/kv_presets.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/simt/simt.h"
#include "models/decode_steps.h"
#include "models/weights/random_checkpoint.h"
#include "tests/engine/batching_engine_of.h"
#include "tests/engine/recording_sink.h"
#include "tests/engine/small_model.h"
#include "tests/kernels/cuda/emulator/emulated_stream.h"
#include "tests/models/temporary_directory.h"

namespace tessera {
namespace {

using simt::emulation::counts;
using simt::emulation::StreamCounts;

const Backend& without_recordings() {
  static const Backend backend = [] {
    Backend plain = cuda_backend();
    plain.record = nullptr;
    return plain;
  }();
  return backend;
}

struct Case {
  std::string name;
  KvPreset kv = kKvPresetF16;
  WeightFormat weights = WeightFormat::f32;
  int32_t context = 256;
  int32_t longest = 0;  // tokens of the first prompt
  const char* architecture = "LlamaForCausalLM";
  void (*change)(ModelConfig&) = [](ModelConfig&) {};
};

// One engine over the emulated device, driven step by step.
class Served {
 public:
  Served(const Case& of, const Backend& backend, Communicator* ranks = nullptr) {
    ModelConfig config = small_model(of.context, of.architecture);
    of.change(config);
    EXPECT_TRUE(write_random_checkpoint(directory_.path(), config, 11).ok());
    EngineOptions options;
    options.max_step_tokens = 64;
    options.max_sequences = 3;
    options.context = of.context;
    options.kv = of.kv;
    options.ranks = ranks;
    engine_ = engine_of({.directory = directory_.path(),
                         .weights = of.weights,
                         .logits_rows = options.max_sequences,
                         .ranks = ranks},
                        options, backend, {});
    for (int32_t i = 0; i < 3; ++i) {
      EngineRequest request;
      for (int32_t t = 0; t < std::max(50 + 7 * i, i == 0 ? of.longest : 0); ++t) {
        request.prompt.push_back(3 + (t * 11 + t * t + i) % 94);
      }
      request.max_tokens = 12 + 9 * i;
      request.ignore_eos = true;
      request.sampling.temperature = 0;
      request.sampling.top_logprobs = 0;
      sinks_.push_back(std::make_shared<RecordingSink>());
      request.sinks = {sinks_.back()};
      EXPECT_TRUE(engine_->submit(std::move(request)).ok());
    }
  }

  // Device calls of one step.
  struct Step {
    StreamCounts asked;
    bool decodes = false;  // all runs of the step are decodes
    int32_t ended = 0;
  };
  // Calls visit(step) for each step until all requests have finished.
  template <class Visit>
  void run(Visit&& visit) {
    for (bool more = true; more;) {
      const StreamCounts before = counts();
      const int32_t running = engine_->stats().running;
      more = engine_->step();
      const StreamCounts after = counts();
      Step step{{after.launches - before.launches, after.recordings - before.recordings,
                 after.waits - before.waits}};
      const StepPlan& plan = engine_->last_plan();
      step.decodes = more && plan.admitted.empty();
      for (const StepPlan::Run& run : plan.runs) {
        step.decodes = step.decodes && run.count == 1 && run.samples;
      }
      step.ended = running - engine_->stats().running;
      visit(step);
      engine_->kv().check_integrity();
    }
  }

  // Returns: tokens and their log probabilities, of all requests.
  std::vector<std::pair<int32_t, float>> results() const {
    std::vector<std::pair<int32_t, float>> all;
    for (const auto& sink : sinks_) {
      for (const TokenLogprob& chosen : sink->chosen_logprobs()) {
        all.emplace_back(chosen.token, chosen.logprob);
      }
    }
    return all;
  }

 private:
  TemporaryDirectory directory_;
  std::unique_ptr<BatchingEngine> engine_;
  std::vector<std::shared_ptr<RecordingSink>> sinks_;
};

class EmulatedStep : public testing::TestWithParam<Case> {};

// A decode step starts one recording. Outside of it run the ops that compute results for the host
// (output rows, last norm, head ...). Page tables change when a group closes or a sequence ends.
// Planning needs only host data, so the host waits for the logits alone. A policy that compresses
// also waits for its results, and for the rows of a sequence that ends.
TEST_P(EmulatedStep, StartsAndWaitsOnceAndGivesTheBitsOfOpsThatAreNotRecorded) {
  Served recorded(GetParam(), cuda_backend());
  const bool lossy = GetParam().kv.policy.is_lossy();
  const bool compresses = lossy && GetParam().kv.policy.compress_generated;
  int32_t steps = 0;
  int32_t min = 0;
  recorded.run([&](const Served::Step& step) {
    EXPECT_EQ(step.asked.recordings, step.decodes ? 1 : 0);
    if (!step.decodes) {
      return;
    }
    ++steps;
    min += step.asked.waits == 1 ? 1 : 0;
    EXPECT_LT(step.asked.launches, 14) << "fewer than a layer has";
    const int64_t expected = 1 + (lossy ? step.ended : 0);
    EXPECT_GE(step.asked.waits, expected);
    EXPECT_LE(step.asked.waits, expected + (compresses ? 1 : 0));
  });
  EXPECT_GT(steps, 20);
  EXPECT_GE(min, steps - 6) << "groups that close, sequences that end";

  Served plain(GetParam(), without_recordings());
  plain.run([](const Served::Step& step) { EXPECT_EQ(step.asked.recordings, 0); });
  EXPECT_EQ(recorded.results(), plain.results());
}

Case of(const char* preset, WeightFormat weights = WeightFormat::f32) {
  return {.name = preset, .kv = lossy(preset), .weights = weights};
}

INSTANTIATE_TEST_SUITE_P(All, EmulatedStep,
                         testing::Values(Case{.name = "f16"},
                                         Case{.name = "spans", .context = 1200, .longest = 560},
                                         of("k8v4", WeightFormat::bf16), of("s50"), of("snapkv"),
                                         of("leankv"),
                                         Case{.name = "qwen3", .architecture = "Qwen3ForCausalLM"}),
                         [](const auto& instance) { return instance.param.name; });

// ---- fused stages

// The emulated device, of which each stage of a layer is an op of its own.
const Backend& without_fused_stages() {
  static const Backend backend = [] {
    Backend apart = without_recordings();
    apart.rounds_ahead = nullptr;
    apart.applies_rope_in_store = false;
    return apart;
  }();
  return backend;
}

struct Stages {
  Case of;
  int64_t launches = 0;  // of a layer, in a decode step of one split
  int64_t saved = 0;     // of a whole decode step with its head
};

class EmulatedStages : public testing::TestWithParam<Stages> {
 protected:
  struct Run {
    std::vector<int64_t> launches;  // of each decode step, but those of a recording
    std::vector<std::pair<int32_t, float>> results;
  };
  static Run run(const Backend& backend) {
    Served served(GetParam().of, backend);
    Run run;
    served.run([&](const Served::Step& step) {
      if (step.decodes) {
        run.launches.push_back(step.asked.launches);
      }
    });
    run.results = served.results();
    return run;
  }
};

// A recording has the layers and the embedding, so the others' launches are those of a step with
// recordings.
TEST_P(EmulatedStages, HaveTheBitsOfSeparateOpsWithFewerLaunches) {
  const Run recorded = run(cuda_backend());
  const Run fused = run(without_recordings());
  const Run apart = run(without_fused_stages());
  EXPECT_EQ(fused.results, apart.results);
  ASSERT_GT(fused.launches.size(), 20);
  ASSERT_EQ(fused.launches.size(), recorded.launches.size());
  ASSERT_EQ(fused.launches.size(), apart.launches.size());
  const int32_t layers = small_model(1).layers;
  for (size_t i = 0; i < fused.launches.size(); ++i) {
    EXPECT_EQ(fused.launches[i] - recorded.launches[i], 1 + layers * GetParam().launches);
    EXPECT_EQ(apart.launches[i] - fused.launches[i], GetParam().saved);
  }
}

// In bf16 a layer saves two roundings of norms, one of the gate, and the rotation. The head saves
// one more rounding.
INSTANTIATE_TEST_SUITE_P(
    All, EmulatedStages,
    testing::Values(Stages{{.name = "f32"}, 9, 2}, Stages{of("k8v4", WeightFormat::bf16), 10, 9},
                    Stages{{.name = "f16_weights", .weights = WeightFormat::f16}, 10, 9},
                    Stages{{.name = "fp8",
                            .weights = WeightFormat::fp8,
                            .change = [](ModelConfig& config) { config.vocab = 112; }},
                           10,
                           9},
                    Stages{{.name = "norms_of_heads",
                            .weights = WeightFormat::bf16,
                            .architecture = "Qwen3ForCausalLM"},
                           12,
                           9},
                    Stages{{.name = "a_layer_without_rope",
                            .weights = WeightFormat::bf16,
                            .architecture = "SmolLM3ForCausalLM",
                            .change =
                                [](ModelConfig& config) {
                                  config.layer_kinds = {{}, {.rotated = false}};
                                }},
                           10,
                           8},
                    Stages{{.name = "growing_queries",
                            .weights = WeightFormat::bf16,
                            .architecture = "Ministral3ForCausalLM",
                            .change =
                                [](ModelConfig& config) {
                                  config.rope_scaling.kind = RopeScaling::Kind::yarn;
                                  config.rope_scaling.factor = 4;
                                  config.rope_scaling.original_context = 32;
                                  config.rope_scaling.query_growth = 0.5f;
                                }},
                           10,
                           11}),
    [](const auto& instance) { return instance.param.of.name; });

// ---- sums over ranks

constexpr int32_t kSumThreads = 64;
TESSERA_KERNEL(kSumThreads) sum_kernel(float* numbers, int64_t count) {
  const int64_t i = int64_t{simt::block_x()} * kSumThreads + simt::thread();
  if (i < count) {
    numbers[i] *= 1.25f;
  }
}

// A single rank that sums with a kernel on the stream, as NCCL does. The imaginary other ranks
// contribute a quarter of this rank's numbers.
class OneRank final : public Communicator {
 public:
  explicit OneRank(bool records_sums) : records_sums_(records_sums) {}

  int32_t rank() const override { return 0; }
  int32_t ranks() const override { return 1; }
  void all_reduce_sum(std::span<float> numbers, Stream stream) override {
    const auto count = static_cast<int64_t>(numbers.size());
    simt::launch(
        stream,
        {.grid_x = static_cast<int32_t>(div_ceil(count, kSumThreads)), .threads = kSumThreads},
        sum_kernel, numbers.data(), count);
  }
  bool records_sums() const override { return records_sums_; }
  void broadcast(std::span<std::byte>) override {}
  void all_gather(std::span<const int64_t> own, std::span<int64_t> all) override {
    std::copy(own.begin(), own.end(), all.begin());
  }
  [[noreturn]] void abort() override { std::abort(); }

 private:
  const bool records_sums_;
};

TEST(EmulatedRank, RecordsItsSumsWhereTheCommunicatorDoes) {
  const Case scored = of("leankv");
  OneRank recording(true);
  Served recorded(scored, cuda_backend(), &recording);
  int32_t steps = 0;
  recorded.run([&](const Served::Step& step) {
    EXPECT_EQ(step.asked.recordings, step.decodes ? 1 : 0);
    steps += step.decodes ? 1 : 0;
  });
  EXPECT_GT(steps, 20);

  OneRank calling(false);
  Served plain(scored, cuda_backend(), &calling);
  plain.run([](const Served::Step& step) { EXPECT_EQ(step.asked.recordings, 0); });
  EXPECT_EQ(recorded.results(), plain.results());

  Served alone(scored, cuda_backend());
  alone.run([](const Served::Step&) {});
  EXPECT_NE(recorded.results(), alone.results()) << "the sums were not computed";
}

// ---- the steps that are recorded

TEST(DecodeSizes, DoubleUpToTheLimits) {
  const auto sizes = [](StepLimits limits) {
    std::vector<std::pair<int32_t, int32_t>> pairs;
    for (const DecodeSize& size : decode_sizes(limits, KvPagesView{})) {
      pairs.emplace_back(size.sequences, size.context);
    }
    return pairs;
  };
  using Pairs = std::vector<std::pair<int32_t, int32_t>>;
  EXPECT_EQ(sizes({512, 1, 300}), (Pairs{{1, 300}}));
  EXPECT_EQ(sizes({512, 5, 2048}), (Pairs{{1, 2048}, {2, 2048}, {4, 2048}, {5, 2048}}));
  EXPECT_EQ(sizes({3, 5, 5000}), (Pairs{{1, 2048},
                                        {1, 4096},
                                        {1, 5000},
                                        {2, 2048},
                                        {2, 4096},
                                        {2, 5000},
                                        {3, 2048},
                                        {3, 4096},
                                        {3, 5000}}));
}

TEST(DecodeSizes, AreFewWhereSequencesAreManyAndLong) {
  KvPagesView pages;
  EXPECT_EQ(decode_sizes({8192, 64, 131072}, pages).size(), 7 * 7);
  KvTokenScore token_score = {};
  pages.token_scores = &token_score;
  EXPECT_EQ(decode_sizes({8192, 1024, 131072}, pages).size(), 2 * 11 * 7);
  pages.layouts[1] = KvPageLayout::make(find_kv_preset("s70")->policy.high, 64, kKvGroup);
  EXPECT_EQ(decode_sizes({8192, 1024, 131072}, pages).size(), 4 * 11 * 7);
}

}  // namespace
}  // namespace tessera
