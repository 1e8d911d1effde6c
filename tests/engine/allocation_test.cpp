// A step uses only memory that was allocated at start or that came with its requests. This binary
// counts every call of operator new.

#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <string>

#include "engine/kv/kv_presets.h"
#include "engine/tier/disk_store.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/even_grammar.h"
#include "tests/engine/fake_drafter.h"
#include "tests/engine/random_traffic.h"
#include "tests/models/temporary_directory.h"

namespace {
// Of each thread: those that write and read the stores may allocate.
thread_local int64_t allocations = 0;
}  // namespace

void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) {
    return memory;
  }
  std::abort();
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {  // std::stable_sort's buffer
  ++allocations;
  return std::malloc(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t /*bytes*/) noexcept {
  std::free(memory);
}

namespace tessera {
namespace {

class NullSink : public EventSink {
 public:
  void on_token(int32_t /*token*/) override {}
  void on_finish(const Finish& /*finish*/) override { ++finished; }
  int finished = 0;
};

struct SteppedPreset {
  std::string name;
  KvPreset kv;
  bool section_step = false;  // unused blocks are replayed in the background
};

class EngineStep : public testing::TestWithParam<SteppedPreset> {};

TEST_P(EngineStep, AllocatesNothingFromArrivalToTheEnd) {
  EngineOptions options;
  options.context = 256;
  options.max_sequences = 8;
  options.max_step_tokens = 40;
  options.max_queue = 64;
  // few pages, so that sequences are preempted
  const KvPreset& preset = GetParam().kv;
  if (GetParam().section_step) {
    options.kv_section_step = replaying_in_name(2 * kKvGroup);
  }
  const KvCacheOptions kv = FakeEngine::kv_options(options, preset, {});
  options.kv_bytes = kv_memory(kv, context_row_pages(kv) + 2);
  PrefixEvents events;
  options.prefix_events = &events;
  FakeEngine fake(options, preset, {});
  const auto sink = std::make_shared<NullSink>();
  for (int32_t i = 0; i < 40; ++i) {
    EngineRequest request = request_of(prompt_of(1 + 4 * i, i), 90);
    request.sampling.top_p = 0.9f;
    request.sampling.top_k = 20;
    request.sampling.seed = static_cast<uint64_t>(i);
    request.sampling.frequency_penalty = 0.5f;
    request.sampling.repetition_penalty = 1.1f;
    request.sampling.top_logprobs = 5;
    request.sampling.prompt_logprobs = i % 2;
    request.observe_logits = i % 4 == 0;
    if (i % 3 == 1) {
      request.pooling = Pooling::mean;
    }
    request.deadline = std::chrono::steady_clock::now() + std::chrono::hours(1);
    request.priority = i % 3;
    if (i % 5 == 0) {
      request.ignore_eos = false;
      request.grammar = std::make_shared<EvenGrammar>(60);
    }
    request.sinks = {sink};
    ASSERT_TRUE(fake.engine->submit(std::move(request)).ok());
  }
  fake.engine->cancel(3);
  for (bool works = true; works;) {
    const int64_t before = allocations;
    const int finished = sink->finished;
    works = fake.engine->step();
    // At its end, a sequence reports the tokens that each head has kept.
    if (preset == kKvPresetF32 || sink->finished == finished) {
      ASSERT_EQ(allocations - before, 0);
    }
  }
  EXPECT_EQ(sink->finished, 40);
  EXPECT_GT(fake.engine->stats().preemptions, 0);
  EXPECT_EQ(fake.engine->stats().cache.compressed_blocks > 0, GetParam().section_step);
  PrefixEvents::Batch batch;
  EXPECT_TRUE(events.take(batch));
}

TEST(EngineStepWithStores, AllocatesNothingForPromptsThatAreWrittenAndReadAgain) {
  const TemporaryDirectory directory;
  EngineOptions options;
  options.context = 256;
  options.max_sequences = 2;
  options.max_step_tokens = 40;
  options.max_queue = 64;
  options.tiers = {
      .host_bytes = 1 << 20, .disk = directory / "kv", .disk_bytes = DiskStore::kLeastLimit};
  FakeEngine fake(options, kKvPresetF32, {});
  const auto sink = std::make_shared<NullSink>();
  for (int32_t i = 0; i < 40; ++i) {  // ten prompts, four times
    EngineRequest request = request_of(prompt_of(200, i % 10), 5);
    request.sinks = {sink};
    ASSERT_TRUE(fake.engine->submit(std::move(request)).ok());
    for (bool works = true; works;) {
      const int64_t before = allocations;
      works = fake.engine->step();
      ASSERT_EQ(allocations - before, 0);
    }
  }
  EXPECT_EQ(sink->finished, 40);
  EXPECT_GT(fake.engine->stats().tiers.restored_blocks, 10);
  EXPECT_EQ(fake.model->defect(), "");
}

// Drafts begin where few requests run and none waits.
TEST(EngineStepWithDrafts, AllocatesNothingWithADraftModelAndFromTheTextItself) {
  EngineOptions options;
  options.context = 256;
  options.max_sequences = 4;
  options.max_step_tokens = 64;
  options.speculation = true;
  options.draft_step_cost = 0.02f;
  for (const bool by_model : {false, true}) {
    FakeEngine fake(options, kKvPresetF32, {}, 0,
                    by_model ? std::make_unique<FakeDrafter>(options.context, 0.3) : nullptr);
    const auto sink = std::make_shared<NullSink>();
    for (int32_t i = 0; i < 24; ++i) {  // three at once
      EngineRequest request = request_of(prompt_of(10 + 5 * i, i), 100);
      request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.5f;
      request.sampling.seed = static_cast<uint64_t>(i);
      request.sampling.top_logprobs = i % 3;
      if (!by_model) {
        request.sampling.allowed_token_ids = {10, 11};  // repetitions
      } else if (i % 4 == 3) {
        request.ignore_eos = false;
        request.grammar = std::make_shared<EvenGrammar>(80);
      }
      request.sinks = {sink};
      ASSERT_TRUE(fake.engine->submit(std::move(request)).ok());
      for (bool works = i % 3 == 2; works;) {
        const int64_t before = allocations;
        works = fake.engine->step();
        ASSERT_EQ(allocations - before, 0);
      }
    }
    EXPECT_EQ(sink->finished, 24);
    EXPECT_GT(fake.engine->stats().accepted_tokens, 100);
    EXPECT_GT(fake.engine->stats().drafted_tokens, fake.engine->stats().accepted_tokens);
    EXPECT_EQ(fake.model->defect(), "");
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, EngineStep,
    testing::Values(SteppedPreset{"f32", kKvPresetF32},
                    SteppedPreset{"replaying", replaying_in_name(2 * kKvGroup)},
                    SteppedPreset{"replaying_in_the_background", kKvPresetF16, true}),
    [](const auto& preset) { return preset.param.name; });

}  // namespace
}  // namespace tessera
