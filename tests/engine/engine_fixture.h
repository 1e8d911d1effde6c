#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "engine/batching_engine.h"
#include "engine/kv/kv_presets.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "tests/engine/fake_model.h"
#include "tests/engine/kv_memory.h"
#include "tests/engine/recording_sink.h"

namespace tessera {

// An engine over the fake model and real pages, driven by hand or by its own thread.
struct FakeEngine {
  static constexpr int32_t kPageTokens = kKvGroup;
  static constexpr int32_t kHeads = 4;  // layers * kv_heads

  // Uses f32 pages by default.
  explicit FakeEngine(const EngineOptions& options) : FakeEngine(options, kKvPresetF32, {}) {}
  // window: of the second layer, in tokens; 0: none. draft: a second model; null: none.
  FakeEngine(EngineOptions options, const KvPreset& kv, const std::vector<KvPreset>& also,
             int32_t window = 0, std::unique_ptr<Transformer> draft = nullptr) {
    options.kv = kv;
    options.kv_also = also;
    auto owned = std::make_unique<FakeModel>(options.context, 2, 2, window);
    model = owned.get();
    auto made = Engine::create(options, std::move(owned), cpu_backend(CpuIsa::scalar),
                               threads.stream(), std::move(draft));
    EXPECT_TRUE(made.ok()) << made.status();
    engine.reset(static_cast<BatchingEngine*>(std::move(made).value().release()));
  }

  // Returns: bytes of KV memory that give every head `pages` pages.
  static int64_t kv_bytes(const EngineOptions& options, int64_t pages) {
    return kv_memory(kv_options(options, kKvPresetF32, {}), pages);
  }
  static KvCacheOptions kv_options(const EngineOptions& options, const KvPreset& kv,
                                   const std::vector<KvPreset>& also, int32_t window = 0) {
    return {.preset = kv,
            .also = also,
            .prefix_cache = options.prefix_cache,
            .section_step = options.kv_section_step.has_value()
                                ? std::optional(options.kv_section_step->policy)
                                : std::nullopt,
            .layers = 2,
            .kv_heads = 2,
            .head_dim = 2,
            .query_heads = 2,
            .windows = {0, window},
            .slots = options.max_sequences,
            .context = options.context};
  }

  // Submits with a new sink.
  // Requires: the request is accepted.
  std::shared_ptr<RecordingSink> submit(EngineRequest request, RequestId* id = nullptr) {
    auto sink = std::make_shared<RecordingSink>();
    request.sinks = {sink};
    const auto accepted = engine->submit(std::move(request));
    EXPECT_TRUE(accepted.ok()) << accepted.status();
    if (id != nullptr && accepted.ok()) {
      *id = *accepted;
    }
    return sink;
  }

  // Submits with `samples` sinks. `id` receives the id of the first sample.
  std::vector<std::shared_ptr<RecordingSink>> submit_samples(EngineRequest request, size_t samples,
                                                             RequestId* id = nullptr) {
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    for (size_t i = 0; i < samples; ++i) {
      sinks.push_back(std::make_shared<RecordingSink>());
    }
    request.sinks.assign(sinks.begin(), sinks.end());
    const auto accepted = engine->submit(std::move(request));
    EXPECT_TRUE(accepted.ok()) << accepted.status();
    if (id != nullptr && accepted.ok()) {
      *id = *accepted;
    }
    return sinks;
  }

  void step_until_idle() {
    while (engine->step()) {
      engine->kv().check_integrity();
    }
  }

  ThreadPool threads{1};
  FakeModel* model = nullptr;  // owned by the engine
  std::unique_ptr<BatchingEngine> engine;
};

// Returns: the request that sample `sample` of `request` is equivalent to.
inline EngineRequest sample_of(EngineRequest request, size_t sample) {
  request.sampling.seed += sample;
  return request;
}

inline EngineRequest request_of(std::vector<int32_t> prompt, int32_t max_tokens) {
  EngineRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  return request;
}

// Returns: token ids that are neither end of sequence nor poison.
inline std::vector<int32_t> prompt_of(int32_t length, int32_t first = 0) {
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < length; ++i) {
    prompt.push_back(3 + (first + i * 7) % (FakeModel::kVocab - 3));
  }
  return prompt;
}

}  // namespace tessera
