#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "models/weights/random_checkpoint.h"
#include "tests/engine/batching_engine_of.h"
#include "tests/engine/recording_sink.h"
#include "tests/engine/small_model.h"
#include "tests/kernels/isas.h"
#include "tests/models/temporary_directory.h"

namespace tessera {

inline constexpr int32_t kContextOfStores = 400;
inline constexpr int32_t kGeneratedTokens = 3;
inline constexpr int64_t kStoreBytes = int64_t{256} << 20;

class NumbersSink final : public RecordingSink {
 public:
  void on_logprobs(const TokenLogprobs& logprobs) override {
    numbers.push_back(logprobs.chosen.logprob);
    for (const TokenLogprob& one : logprobs.top) {
      numbers.push_back(static_cast<float>(one.token));
      numbers.push_back(one.logprob);
    }
  }
  std::vector<float> numbers;
};

struct StoredAnswer {
  std::vector<int32_t> tokens;
  std::vector<float> numbers;
  int32_t cached = 0;
};

class StoresTest : public testing::Test {
 protected:
  void SetUp() override {
    const ModelConfig config = small_model(kContextOfStores);
    ASSERT_TRUE(write_random_checkpoint(directory_ / "model", config, 5).ok());
  }

  EngineOptions options(const KvPreset& preset, const KvTierOptions& tiers = {}) const {
    EngineOptions options;
    options.max_step_tokens = 100;
    options.max_sequences = 4;  // and pages for four whole contexts
    options.context = kContextOfStores;
    options.kv = preset;
    options.kv_ladder = std::vector<KvFormat>{};
    options.tiers = tiers;
    return options;
  }
  // All stores are read, although the small model computes as fast.
  static KvTierOptions tiers() {
    KvTierOptions options;
    options.disk_bytes = kStoreBytes;
    options.rates = KvTierRates{.token_seconds = 1, .block_seconds = {1, 1}};
    return options;
  }
  KvTierOptions host() const {
    KvTierOptions options = tiers();
    options.host_bytes = kStoreBytes;
    return options;
  }
  KvTierOptions disk() const {
    KvTierOptions options = tiers();
    options.disk = directory_ / "kv";
    return options;
  }
  KvTierOptions both() const {
    KvTierOptions options = disk();
    options.host_bytes = kStoreBytes;
    return options;
  }

  absl::StatusOr<std::unique_ptr<Engine>> try_engine(const EngineOptions& options) {
    const Backend& backend = cpu_backend(isas_of_this_machine().back());
    return try_engine_of({.directory = directory_ / "model"}, options, backend, threads_.stream());
  }
  std::unique_ptr<Engine> engine(const EngineOptions& options) {
    auto made = try_engine(options);
    EXPECT_TRUE(made.ok()) << made.status();
    return std::move(made).value();
  }

  static std::shared_ptr<NumbersSink> submit(Engine& engine, std::vector<int32_t> prompt,
                                             int32_t max_tokens, const std::string& salt = {}) {
    auto sink = std::make_shared<NumbersSink>();
    EngineRequest request;
    request.prompt = std::move(prompt);
    request.max_tokens = max_tokens;
    request.ignore_eos = true;
    request.sampling.temperature = 0;
    request.sampling.top_logprobs = kMaxTopLogprobs;
    request.cache_salt = salt;
    request.sinks = {sink};
    EXPECT_TRUE(engine.submit(std::move(request)).ok());
    return sink;
  }
  static StoredAnswer answer_of(const NumbersSink& sink) {
    EXPECT_TRUE(sink.finish().has_value());
    return {sink.tokens(), sink.numbers, sink.finish()->cached_tokens};
  }
  // Waits until what was evicted is in the stores: a block on its way is a miss.
  static void settle(Engine& engine) {
    while (engine.step() || engine.stats().tiers.queued_blocks > 0) {
      usleep(100);
    }
  }
  static StoredAnswer ask(Engine& engine, std::vector<int32_t> prompt,
                          const std::string& salt = {}) {
    const auto sink = submit(engine, std::move(prompt), kGeneratedTokens, salt);
    while (engine.step()) {
    }
    return answer_of(*sink);
  }

  static std::vector<int32_t> prompt_number(uint32_t number) {
    std::mt19937 random(number);
    std::vector<int32_t> tokens(300 + random() % 90);
    for (int32_t& token : tokens) {
      token = 3 + static_cast<int32_t>(random() % 94);
    }
    return tokens;
  }

  ThreadPool threads_{1};
  TemporaryDirectory directory_;
};

}  // namespace tessera
