#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/batching_engine.h"
#include "engine/kv/kv_presets.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "models/weights/random_checkpoint.h"
#include "tests/engine/batching_engine_of.h"
#include "tests/engine/kv_memory.h"
#include "tests/engine/recording_sink.h"
#include "tests/engine/small_model.h"
#include "tests/kernels/isas.h"
#include "tests/models/temporary_directory.h"

namespace tessera {

inline constexpr int32_t kSection = 256;
inline constexpr int32_t kSectionContext = 2048;
inline constexpr int64_t kSectionRows = 4;   // 2 layers of 2 KV heads
inline constexpr int32_t kSectionPage = 32;  // tokens of a page where sections are compressed
inline constexpr int64_t kFullPages = kSectionRows * kSection / kSectionPage;
inline constexpr int64_t kGroupPages = kSectionRows * kKvGroup / kSectionPage;

inline KvCacheOptions section_options(const KvPreset& preset, int32_t slots, int32_t context) {
  return {.preset = preset,
          .prefix_cache = true,
          .layers = 2,
          .kv_heads = 2,
          .head_dim = 32,
          .query_heads = 4,
          .slots = slots,
          .context = context};
}

// Returns: the message with which a cache of these options is refused; empty if it is not.
inline std::string refusal(const KvCacheOptions& options,
                           const Backend& backend = cpu_backend(CpuIsa::scalar)) {
  ThreadPool threads(1);
  return std::string(KvCache::create(options, backend, threads.stream()).status().message());
}

class SectionsTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(write_random_checkpoint(directory_.path(), small_model(kSectionContext), 5).ok());
  }

  static KvCacheOptions kv_options(const KvPreset& preset) {
    return section_options(preset, 4, kSectionContext);
  }

  // An engine over the same random weights as every other of this fixture.
  // row_pages: of each (layer, KV head); 0: enough for all.
  std::unique_ptr<BatchingEngine> engine(bool cache = true, int64_t row_pages = 0,
                                         const KvPreset& preset = short_sections(kSection),
                                         std::vector<KvPreset> also = {}) {
    const Backend& backend = cpu_backend(isas_of_this_machine().back());
    EngineOptions options;
    options.max_step_tokens = 96;  // not a divisor of a section
    options.max_sequences = 4;
    options.context = kSectionContext;
    options.kv = preset;
    options.kv_also = std::move(also);
    options.max_queue = 100;
    options.prefix_cache = cache;
    options.kv_ladder = std::vector<KvFormat>{};
    options.kv_bytes = row_pages == 0 ? 0 : kv_memory(kv_options(preset), row_pages);
    return batching_engine_of(directory_.path(), options, 96, backend, threads_.stream());
  }

  static std::shared_ptr<RecordingSink> submit(Engine& engine, std::vector<int32_t> prompt,
                                               int32_t max_tokens, RequestId* id = nullptr) {
    auto sink = std::make_shared<RecordingSink>();
    EngineRequest request;
    request.prompt = std::move(prompt);
    request.max_tokens = max_tokens;
    request.ignore_eos = true;
    request.sampling.temperature = 0;
    request.sinks = {sink};
    const auto accepted = engine.submit(std::move(request));
    EXPECT_TRUE(accepted.ok()) << accepted.status();
    if (id != nullptr) {
      *id = *accepted;
    }
    return sink;
  }
  static void run(BatchingEngine& engine) {
    while (engine.step()) {
      engine.kv().check_integrity();
    }
  }
  static Finish ask(BatchingEngine& engine, std::vector<int32_t> prompt, int32_t max_tokens,
                    std::vector<int32_t>* answer = nullptr) {
    const auto sink = submit(engine, std::move(prompt), max_tokens);
    run(engine);
    if (answer != nullptr) {
      *answer = sink->tokens();
    }
    return *sink->finish();
  }

  std::vector<int32_t> random_tokens(int32_t count) {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < count; ++i) {
      tokens.push_back(3 + static_cast<int32_t>(random_() % 94));
    }
    return tokens;
  }
  static std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }

  std::mt19937 random_{11};
  ThreadPool threads_{1};
  TemporaryDirectory directory_;
};

}  // namespace tessera
