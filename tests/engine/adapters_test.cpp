// Requests with adapters (LoRA) over a real transformer with random weights.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine/tier/prefix_events.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "models/lora/adapter.h"
#include "models/weights/random_checkpoint.h"
#include "tests/engine/batching_engine_of.h"
#include "tests/engine/recording_sink.h"
#include "tests/engine/small_model.h"
#include "tests/models/random_adapter.h"
#include "tests/models/temporary_directory.h"

namespace tessera {
namespace {

using Adapter = std::shared_ptr<const LoraAdapter>;

class EngineAdapters : public testing::Test {
 protected:
  static constexpr int32_t kContext = 384;

  void SetUp() override {
    const ModelConfig config = small_model(kContext);
    ASSERT_TRUE(write_random_checkpoint(directory_.path(), config, 5).ok());
    write_random_adapter(directory_.path() / "a", config, {.seed = 1});
    write_random_adapter(directory_.path() / "b", config, {.seed = 2, .rank = 7, .alpha = 30});
  }

  std::unique_ptr<BatchingEngine> engine(EngineOptions options = {}) {
    options.max_step_tokens = 48;
    options.max_sequences = 8;
    options.context = kContext;
    return batching_engine_of(directory_.path(), options, 64, cpu_backend(best_cpu_isa()),
                              threads_.stream());
  }
  Adapter load(const Engine& engine, const char* name) {
    absl::StatusOr<Adapter> loaded = engine.load_adapter(directory_.path() / name);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.value();
  }

  static std::vector<int32_t> prompt(int32_t tokens, int32_t first) {
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < tokens; ++i) ids.push_back(3 + (first + i * 17 + i * i) % 94);
    return ids;
  }
  static EngineRequest request(std::vector<int32_t> ids, Adapter adapter) {
    EngineRequest made;
    made.prompt = std::move(ids);
    made.max_tokens = 40;
    made.ignore_eos = true;
    made.sampling.temperature = 0;
    made.adapter = std::move(adapter);
    return made;
  }
  static std::shared_ptr<RecordingSink> submit(Engine& engine, EngineRequest request) {
    auto sink = std::make_shared<RecordingSink>();
    request.sinks = {sink};
    const absl::StatusOr<RequestId> accepted = engine.submit(std::move(request));
    EXPECT_TRUE(accepted.ok()) << accepted.status();
    return sink;
  }
  static std::shared_ptr<RecordingSink> ask(Engine& engine, EngineRequest asked) {
    const auto sink = submit(engine, std::move(asked));
    while (engine.step()) {
    }
    return sink;
  }

  ThreadPool threads_{2};
  TemporaryDirectory directory_;
};

TEST_F(EngineAdapters, ATextDependsOnItsOwnAdapterAlone) {
  const auto together = engine({.speculation = true});
  const auto alone = engine({.prefix_cache = false});
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  const std::vector<Adapter> adapters = {load(*together, "a"), nullptr, load(*together, "b")};
  const auto request_of = [&](int32_t i) {
    return request(prompt(20 + i * 13 % 90, i / 3), adapters[static_cast<size_t>(i) % 3]);
  };
  for (int32_t i = 0; i < 18; ++i) sinks.push_back(submit(*together, request_of(i)));
  while (together->step()) {
  }
  std::vector<std::vector<int32_t>> texts;
  for (int32_t i = 0; i < 18; ++i) {
    texts.push_back(sinks[static_cast<size_t>(i)]->tokens());
    EXPECT_EQ(texts.back(), ask(*alone, request_of(i))->tokens()) << i;
  }
  EXPECT_NE(ask(*alone, request(prompt(60, 1), adapters[0]))->tokens(),
            ask(*alone, request(prompt(60, 1), nullptr))->tokens());
  EXPECT_NE(ask(*alone, request(prompt(60, 1), adapters[0]))->tokens(),
            ask(*alone, request(prompt(60, 1), adapters[2]))->tokens());
}

TEST_F(EngineAdapters, APrefixIsSharedOnlyUnderItsOwnAdapter) {
  const auto shared = engine();
  const std::vector<int32_t> ids = prompt(300, 4);
  const auto asked = [&](const Adapter& adapter, const std::string& salt = "") {
    EngineRequest made = request(ids, adapter);
    made.cache_salt = salt;
    const auto sink = ask(*shared, std::move(made));
    return std::pair(sink->finish()->cached_tokens, sink->tokens());
  };
  const Adapter a = load(*shared, "a");
  const auto base = asked(nullptr);
  const auto of_a = asked(a);
  EXPECT_EQ(base.first, 0);
  EXPECT_EQ(of_a.first, 0);
  EXPECT_EQ(asked(load(*shared, "b")).first, 0);
  EXPECT_EQ(asked(a, "salt").first, 0);
  EXPECT_EQ(asked(nullptr, a->fingerprint()).first, 0);
  EXPECT_GE(asked(nullptr).first, 128);
  EXPECT_EQ(asked(nullptr).second, base.second);
  const auto again = asked(load(*shared, "a"));  // read again from its files
  EXPECT_GE(again.first, 128);
  EXPECT_EQ(again.second, of_a.second);
}

// The router's events name blocks by their tokens alone, so blocks of adapters have none.
TEST_F(EngineAdapters, BlocksOfAnAdapterAreNotReported) {
  PrefixEvents events;
  EngineOptions options;
  options.prefix_events = &events;
  {
    const auto reporting = engine(options);
    ask(*reporting, request(prompt(300, 4), load(*reporting, "a")));
  }
  events.close();
  PrefixEvents::Batch batch;
  events.take(batch);
  EXPECT_TRUE(batch.events.empty());
}

TEST_F(EngineAdapters, ARequestHoldsItsAdapterToItsEnd) {
  const auto holding = engine();
  Adapter adapter = load(*holding, "a");
  const std::weak_ptr<const LoraAdapter> watched = adapter;
  const auto sink = submit(*holding, request(prompt(60, 1), std::move(adapter)));
  while (sink->tokens().size() < 20) {
    ASSERT_TRUE(holding->step());
    EXPECT_FALSE(watched.expired());
  }
  while (holding->step()) {
  }
  EXPECT_EQ(sink->finish()->reason, FinishReason::length);
  EXPECT_TRUE(watched.expired());
}

// A background replay would compute a block without the adapter.
TEST_F(EngineAdapters, AreRefusedBesideASectionStep) {
  EngineOptions options;
  options.kv_section_step = short_sections(64);
  const auto stepping = engine(options);
  EngineRequest asked = request(prompt(60, 1), load(*stepping, "a"));
  asked.sinks = {std::make_shared<RecordingSink>()};
  const absl::Status status = stepping->submit(std::move(asked)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
}

}  // namespace
}  // namespace tessera
