// The section step of the ladder: whole blocks that no sequence uses are replayed and compressed.
// Runs a real transformer with random weights. Random traffic is in simulation_test.cpp.

#include "engine/background_replay.h"

#include <gtest/gtest.h>

#include "engine/kv/kv_presets.h"
#include "tests/engine/sections_fixture.h"

namespace tessera {
namespace {

class BackgroundReplays : public SectionsTest {
 protected:
  static KvCacheOptions stepped_options() {
    KvCacheOptions options = kv_options(kKvPresetK8V4);
    options.section_step = short_sections(kSection).policy;
    return options;
  }

  // row_pages: of each (layer, KV head); 0: enough for all.
  std::unique_ptr<BatchingEngine> stepped(int64_t row_pages = 0, int32_t max_sequences = 4) {
    EngineOptions options;
    options.max_step_tokens = 96;
    options.max_sequences = max_sequences;
    options.context = kSectionContext;
    options.kv = kKvPresetK8V4;
    options.kv_section_step = short_sections(kSection);
    options.max_queue = 100;
    KvCacheOptions kv = stepped_options();
    kv.slots = max_sequences;
    options.kv_bytes = row_pages == 0 ? 0 : kv_memory(kv, row_pages);
    return batching_engine_of(directory_.path(), options, 96,
                              cpu_backend(isas_of_this_machine().back()), threads_.stream());
  }
  std::unique_ptr<BatchingEngine> plain() { return engine(false, 0, kKvPresetK8V4); }

  // Runs until no request is left; replays go on later.
  static void run_requests(BatchingEngine& engine) {
    while (!engine.idle()) {
      engine.step();
      engine.kv().check_integrity();
    }
  }
  static Finish ask_deterministic(BatchingEngine& engine, std::vector<int32_t> prompt,
                                  int32_t max_tokens, std::vector<int32_t>& answer) {
    auto sink = std::make_shared<RecordingSink>();
    EngineRequest request;
    request.prompt = std::move(prompt);
    request.max_tokens = max_tokens;
    request.ignore_eos = true;
    request.deterministic = true;
    request.sampling.temperature = 0;
    request.sinks = {sink};
    EXPECT_TRUE(engine.submit(std::move(request)).ok());
    run_requests(engine);
    answer = sink->tokens();
    return *sink->finish();
  }
};

TEST_F(BackgroundReplays, ComputePromptsWholeAndCompressThemLater) {
  const auto engine = stepped();
  const auto plain = this->plain();
  const std::vector<int32_t> prompt = random_tokens(3 * kSection + 50);
  const auto sink = submit(*engine, prompt, 30);
  run_requests(*engine);
  std::vector<int32_t> expected;
  ask(*plain, prompt, 30, &expected);
  EXPECT_EQ(sink->tokens(), expected) << "the first turn reads everything";
  EXPECT_EQ(sink->finish()->kv.usage.dropped, 0);
  EXPECT_EQ(engine->stats().kv_replayed_tokens, 0) << "and nothing is replayed before it ends";
  EXPECT_EQ(engine->stats().cache.pages, 3 * kFullPages + kGroupPages) << "with a short block";

  run(*engine);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.kv_replayed_tokens, 3 * kSection);
  EXPECT_EQ(stats.cache.compressed_blocks, 3);
  EXPECT_EQ(stats.cache.blocks, 3 + 1) << "the short block stays whole";
  EXPECT_EQ(stats.cache.pages, 3 * kFullPages / 2 + kGroupPages);
  EXPECT_EQ(stats.cache.unlocked_pages, stats.cache.pages);
  EXPECT_EQ(stats.pages_free, stats.pages_total);

  const Finish hit = ask(*engine, joined(prompt, random_tokens(10)), 5);
  EXPECT_EQ(hit.cached_tokens, 3 * kSection);
  EXPECT_EQ(hit.kv.usage.dropped, 3 * kSection / 2);
  EXPECT_EQ(hit.kv.usage.high, 3 * kSection / 2 + 50 + 10 + 4);
  EXPECT_EQ(hit.kv.usage.kept.size(), kSectionRows);
  const KvArenaShape& shape = engine->kv().shape();
  EXPECT_EQ(hit.kv.usage.bytes,
            (3 * kFullPages / 2 + kGroupPages) * shape.page_bytes + shape.slot_bytes());
}

// A block that was computed behind the same sections keeps the same pages under both policies.
TEST_F(BackgroundReplays, GiveTheSectionsOfAPolicyThatWaits) {
  const auto engine = stepped();
  const auto waits = this->engine();
  std::vector<int32_t> chat;
  int32_t closed = 0;
  for (int32_t turn = 0; turn < 4; ++turn) {
    SCOPED_TRACE(testing::Message() << "turn " << turn);
    chat = joined(chat, random_tokens(kSection + 10));
    ask(*engine, chat, 1);
    ask(*waits, chat, 1);
    closed += kSection;
    const std::vector<int32_t> question = joined(chat, random_tokens(20));
    const auto background = submit(*engine, question, 30);
    run(*engine);
    const auto waited = submit(*waits, question, 30);
    run(*waits);
    EXPECT_EQ(background->finish()->cached_tokens, closed);
    EXPECT_EQ(waited->finish()->cached_tokens, closed);
    EXPECT_EQ(background->tokens(), waited->tokens());
    EXPECT_EQ(background->finish()->kv.usage.kept, waited->finish()->kv.usage.kept);
  }
  EXPECT_EQ(engine->stats().kv_replayed_tokens, waits->stats().kv_replayed_tokens);
}

TEST_F(BackgroundReplays, MakeHitsThatEqualHits) {
  const auto engine = stepped();
  const auto plain = this->plain();
  const std::vector<int32_t> document = random_tokens(3 * kSection);
  ask(*engine, document, 1);
  const std::vector<int32_t> question = joined(document, random_tokens(30));
  std::vector<int32_t> first;
  EXPECT_EQ(ask(*engine, question, 40, &first).cached_tokens, 3 * kSection);
  for (int32_t i = 0; i < 3; ++i) {
    ask(*engine, joined(document, random_tokens(100 * (i + 1))), 10);
    std::vector<int32_t> again;
    EXPECT_EQ(ask(*engine, question, 40, &again).cached_tokens, 3 * kSection);
    EXPECT_EQ(again, first);
  }
  std::vector<int32_t> whole;
  ask(*plain, question, 40, &whole);
  EXPECT_NE(first, whole) << "or the sections lost nothing, and this test says nothing";
}

TEST_F(BackgroundReplays, AreBypassedByDeterministicRequests) {
  const auto engine = stepped();
  const auto plain = this->plain();
  const std::vector<int32_t> document = random_tokens(2 * kSection + 20);
  ask(*engine, document, 1);
  const std::vector<int32_t> question = joined(document, random_tokens(30));
  std::vector<int32_t> whole;
  ask(*plain, question, 40, &whole);
  std::vector<int32_t> answer;
  EXPECT_EQ(ask_deterministic(*engine, question, 40, answer).cached_tokens, 0);
  EXPECT_EQ(answer, whole);
  EXPECT_EQ(engine->stats().cache.pages, 2 * kFullPages + kGroupPages)
      << "its whole blocks replace sections";
  EXPECT_EQ(ask_deterministic(*engine, question, 40, answer).cached_tokens, 2 * kSection);
  EXPECT_EQ(answer, whole);
  run(*engine);
  EXPECT_EQ(engine->stats().cache.pages, kFullPages + kGroupPages);
  EXPECT_EQ(ask_deterministic(*engine, question, 40, answer).cached_tokens, 0);
  EXPECT_EQ(answer, whole);
}

TEST_F(BackgroundReplays, AreGivenUpWhenARequestUsesTheBlock) {
  const auto engine = stepped();
  const auto plain = this->plain();
  const std::vector<int32_t> document = random_tokens(kSection + 20);
  submit(*engine, document, 1);
  run_requests(*engine);
  engine->step();
  engine->step();
  EXPECT_EQ(engine->stats().kv_replayed_tokens, 2 * BackgroundReplay::kStepTokens);
  const std::vector<int32_t> question = joined(document, random_tokens(10));
  const auto sink = submit(*engine, question, 30);
  run_requests(*engine);
  std::vector<int32_t> whole;
  ask(*plain, question, 30, &whole);
  EXPECT_EQ(sink->finish()->cached_tokens, kSection);
  EXPECT_EQ(sink->tokens(), whole) << "it reads the whole block";
  EXPECT_EQ(engine->stats().cache.compressed_blocks, 0);
  run(*engine);
  EXPECT_EQ(engine->stats().cache.compressed_blocks, 1);
}

// A request that is admitted in the very step in which the replay ends keeps the whole block.
TEST_F(BackgroundReplays, LeaveABlockWholeThatIsAttachedInTheirLastStep) {
  for (int32_t steps = 1; steps <= 6; ++steps) {
    SCOPED_TRACE(steps);
    const auto engine = stepped();
    const auto plain = this->plain();
    const std::vector<int32_t> document = random_tokens(kSection + 20);
    submit(*engine, document, 1);
    run_requests(*engine);
    for (int32_t i = 0; i < steps; ++i) {
      engine->step();
    }
    const bool compressed = engine->stats().cache.compressed_blocks > 0;
    EXPECT_EQ(compressed, steps >= kSection / BackgroundReplay::kStepTokens);
    const std::vector<int32_t> question = joined(document, random_tokens(10));
    const auto sink = submit(*engine, question, 200);
    run_requests(*engine);
    std::vector<int32_t> whole;
    ask(*plain, question, 200, &whole);
    EXPECT_EQ(sink->tokens() == whole, !compressed);
  }
}

TEST_F(BackgroundReplays, WaitForAFreeSlot) {
  const auto engine = stepped(0, 1);
  ask(*engine, random_tokens(10), 1);
  submit(*engine, random_tokens(2 * kSection + 10), 1);
  run_requests(*engine);
  const auto other = submit(*engine, random_tokens(20), 300);
  run_requests(*engine);
  EXPECT_EQ(other->tokens().size(), 300);
  EXPECT_EQ(engine->stats().kv_replayed_tokens, 0);
  run(*engine);
  EXPECT_EQ(engine->stats().cache.compressed_blocks, 3) << "two of the prompt, one of the answer";
}

// One sequence after the other takes the only slot, so nothing is replayed.
TEST_F(BackgroundReplays, LeaveWholeBlocksToEvictionIfTheyNeverRun) {
  const auto engine = stepped(context_row_pages(stepped_options()), 1);
  for (int32_t i = 0; i < 12; ++i) {
    submit(*engine, random_tokens(2 * kSection + 10), 1);
  }
  run_requests(*engine);
  EXPECT_EQ(engine->stats().cache.compressed_blocks, 0);
  EXPECT_GT(engine->stats().cache.evicted_blocks, 0);
  EXPECT_EQ(engine->stats().cache.pages, engine->stats().cache.blocks * kFullPages);
}

TEST_F(BackgroundReplays, KeepMorePromptsInTheSameMemory) {
  const int64_t row_pages = context_row_pages(stepped_options());
  const auto engine = stepped(row_pages);
  const auto whole = this->engine(true, row_pages * kSectionPage / kKvGroup, kKvPresetK8V4);
  std::vector<std::vector<int32_t>> prompts;
  for (int32_t i = 0; i < 12; ++i) {
    prompts.push_back(random_tokens(kSection + 10));
    ask(*engine, prompts.back(), 1);
    ask(*whole, prompts.back(), 1);
  }
  int64_t found = 0;
  int64_t found_whole = 0;
  for (const std::vector<int32_t>& prompt : prompts) {
    found += ask(*engine, joined(prompt, {5}), 1).cached_tokens;
    found_whole += ask(*whole, joined(prompt, {5}), 1).cached_tokens;
  }
  EXPECT_EQ(found, 12 * kSection);
  EXPECT_LT(found_whole, found);
}

TEST_F(BackgroundReplays, LetSamplesForkTheirPrompt) {
  const auto engine = stepped();
  const std::vector<int32_t> document = random_tokens(2 * kSection);
  ask(*engine, document, 1);
  const std::vector<int32_t> question = joined(document, random_tokens(100));
  std::vector<int32_t> expected;
  ask(*engine, question, 90, &expected);
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  EngineRequest request;
  request.prompt = question;
  request.max_tokens = 90;
  request.ignore_eos = true;
  request.sampling.temperature = 0;
  for (int32_t i = 0; i < 6; ++i) {  // more than slots: the last ones fork when groups have closed
    sinks.push_back(std::make_shared<RecordingSink>());
    request.sinks.push_back(sinks.back());
  }
  ASSERT_TRUE(engine->submit(std::move(request)).ok());
  run(*engine);
  for (const auto& sink : sinks) {
    EXPECT_EQ(sink->tokens(), expected);
  }
}

#ifdef __SANITIZE_ADDRESS__
constexpr int32_t kRandomSteps = 300;  // a step takes tens of milliseconds
#else
constexpr int32_t kRandomSteps = 6000;
#endif

TEST_F(BackgroundReplays, StandPressureAndCancellation) {
  const auto engine = stepped(context_row_pages(stepped_options()));
  const std::vector<int32_t> document = random_tokens(700);
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  std::vector<RequestId> ids;
  for (int32_t step = 0; step < kRandomSteps; ++step) {
    if (random_() % 60 == 0) {
      const auto shared = static_cast<int32_t>(random_() % 700);
      std::vector<int32_t> prompt(document.begin(), document.begin() + shared);
      prompt = joined(prompt, random_tokens(1 + static_cast<int32_t>(random_() % 400)));
      ids.emplace_back();
      const auto most = static_cast<int32_t>(random_() % 300);
      sinks.push_back(submit(*engine, std::move(prompt), 1 + most, &ids.back()));
    }
    if (random_() % 300 == 0 && !ids.empty()) {
      engine->cancel(ids[random_() % ids.size()]);
    }
    if (random_() % 2000 == 0) {
      engine->flush_cache();
    }
    engine->step();
    engine->kv().check_integrity();
  }
  run(*engine);
  for (const auto& sink : sinks) {
    EXPECT_TRUE(sink->finish().has_value());
  }
  if (kRandomSteps > 1000) {
    EXPECT_GT(sinks.size(), 50);
    EXPECT_GT(engine->stats().preemptions, 0);
    EXPECT_GT(engine->stats().cache.compressed_blocks, 0);
    EXPECT_GT(engine->stats().cache.evicted_blocks, 0);
  }
  engine->flush_cache();
  run(*engine);
  EXPECT_EQ(engine->stats().pages_free, engine->stats().pages_total);
  EXPECT_EQ(engine->stats().cache.blocks, 0);
}

// A policy that waits for its replays has paths of its own on the same server.
TEST_F(BackgroundReplays, LeaveRequestsTheirChoiceToWait) {
  const auto engine = stepped();
  const auto waits = this->engine();
  const std::vector<int32_t> prompt = random_tokens(2 * kSection + 20);
  std::vector<int32_t> expected;
  ask(*waits, prompt, 30, &expected);
  for (int32_t i = 0; i < 2; ++i) {
    const auto sink = std::make_shared<RecordingSink>();
    EngineRequest request;
    request.prompt = prompt;
    request.max_tokens = 30;
    request.ignore_eos = true;
    request.sampling.temperature = 0;
    request.kv = short_sections(kSection);
    request.sinks = {sink};
    ASSERT_TRUE(engine->submit(std::move(request)).ok());
    run(*engine);
    EXPECT_EQ(sink->tokens(), expected);
    EXPECT_EQ(sink->finish()->cached_tokens, i == 0 ? 0 : 2 * kSection);
    ask(*engine, prompt, 1);
  }
  EXPECT_EQ(engine->stats().cache.blocks, 4);
  EXPECT_EQ(engine->stats().cache.pages, 2 * kFullPages);
}

}  // namespace
}  // namespace tessera
