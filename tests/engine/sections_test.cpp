// Policies that replay: sections are compressed one after the other and shared. Runs a real
// transformer with random weights. That a hit has the bits of a miss is tested in
// prefix_hit_test.cpp, random traffic in simulation_test.cpp.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "engine/kv/kv_presets.h"
#include "tests/engine/sections_fixture.h"

namespace tessera {
namespace {

class Sections : public SectionsTest {};

TEST_F(Sections, TakeThePresetsBytesAtEveryTurnOfAChat) {
  const auto engine = this->engine();
  std::vector<int32_t> chat;
  int32_t closed = 0;  // tokens of the sections that the turns before have closed
  int32_t stored = 0;  // by the turns before
  for (int32_t turn = 0; turn < 4; ++turn) {
    SCOPED_TRACE(testing::Message() << "turn " << turn);
    const int64_t replayed_before = engine->stats().kv_replayed_tokens;
    chat = joined(chat, random_tokens(260));
    std::vector<int32_t> answer;
    const Finish finish = ask(*engine, chat, 120, &answer);
    chat = joined(chat, answer);
    EXPECT_EQ(finish.cached_tokens, stored / kKvGroup * kKvGroup)
        << "each turn finds all whole groups of the turns before";
    stored = static_cast<int32_t>(chat.size()) - 1;
    const int32_t sections = stored / kSection;
    EXPECT_EQ(engine->stats().kv_replayed_tokens - replayed_before, sections * kSection - closed)
        << "a section is replayed once";
    closed = sections * kSection;
    const KvUsage& usage = finish.kv.usage;
    EXPECT_EQ(usage.high, closed / 2 + stored - closed);
    EXPECT_EQ(usage.dropped, closed / 2);
    const KvArenaShape& shape = engine->kv().shape();
    const int64_t pages = sections * kFullPages / 2 + (stored - closed) / kKvGroup * kGroupPages;
    EXPECT_EQ(usage.bytes, pages * shape.page_bytes + shape.slot_bytes());
  }
  EXPECT_EQ(closed, 5 * kSection);
}

TEST_F(Sections, HaveHeadsThatKeepDifferentNumbersOfPages) {
  const auto engine = this->engine();
  const Finish finish = ask(*engine, random_tokens(900), 1);
  const std::vector<int32_t>& kept = finish.kv.usage.kept;
  ASSERT_EQ(kept.size(), kSectionRows);
  EXPECT_NE(*std::min_element(kept.begin(), kept.end()),
            *std::max_element(kept.begin(), kept.end()));
  for (const int32_t tokens : kept) {
    EXPECT_EQ((tokens - 900 % kSection) % kSectionPage, 0) << "whole pages";
  }
}

// Without another policy that needs scores, a slot has scores of one section, for any context.
TEST_F(Sections, NeedScoresOfOneSectionAlone) {
  const KvPreset preset = short_sections(kSection);
  KvPreset of_all_tokens{"all", preset.policy};
  of_all_tokens.policy.scorer = KvScorer::sum;
  const auto score_bytes = [](const BatchingEngine& engine) {
    return engine.kv().shape().slot_token_score_bytes();
  };
  constexpr int64_t kScore = sizeof(KvTokenScore);
  EXPECT_EQ(score_bytes(*this->engine()), kSectionRows * (kSection + 1) * kScore);
  const auto among_all = this->engine(true, 0, preset, {of_all_tokens});
  EXPECT_EQ(score_bytes(*among_all), kSectionRows * (kSectionContext + 1) * kScore);
  EXPECT_EQ(ask(*among_all, random_tokens(900), 1).kv.usage.dropped, 3 * kSection / 2);
}

TEST_F(Sections, AreStoredOnceForAllQuestionsAboutADocument) {
  constexpr int32_t kQuestions = 30;
  const auto alone = this->engine(false);
  const auto engine = this->engine();
  const std::vector<int32_t> document = random_tokens(3 * kSection + 20);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int32_t i = 0; i < kQuestions; ++i) {  // all at once: the first computes, the others wait
    prompts.push_back(joined(document, random_tokens(10)));
    sinks.push_back(submit(*engine, prompts.back(), 5));
  }
  run(*engine);
  int32_t hits = 0;
  for (size_t i = 0; i < sinks.size(); ++i) {
    std::vector<int32_t> expected;
    ask(*alone, prompts[i], 5, &expected);
    EXPECT_EQ(sinks[i]->tokens(), expected);
    hits += sinks[i]->finish()->cached_tokens == 3 * kSection ? 1 : 0;
  }
  EXPECT_EQ(hits, kQuestions - 1);
  EXPECT_EQ(engine->stats().kv_replayed_tokens, 3 * kSection);
  EXPECT_EQ(engine->stats().cache.blocks, 3);
  EXPECT_EQ(engine->stats().cache.pages, 3 * kFullPages / 2);
}

// The rest of the document behind its last section is stored once too, and each later question
// computes its own tokens alone.
TEST_F(Sections, LeaveTheRestOfADocumentInShortBlocks) {
  const auto alone = this->engine(false);
  const auto engine = this->engine();
  const std::vector<int32_t> document = random_tokens(kSection + 3 * kKvGroup + 20);
  constexpr int32_t kClosed = kSection + 3 * kKvGroup;
  for (int32_t i = 0; i < 5; ++i) {
    SCOPED_TRACE(testing::Message() << "question " << i);
    const std::vector<int32_t> prompt = joined(document, random_tokens(20));
    std::vector<int32_t> answer;
    const Finish finish = ask(*engine, prompt, 10, &answer);
    EXPECT_EQ(finish.cached_tokens, i == 0 ? 0 : kClosed);
    std::vector<int32_t> expected;
    ask(*alone, prompt, 10, &expected);
    EXPECT_EQ(answer, expected);
  }
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.kv_replayed_tokens, kSection);
  EXPECT_EQ(stats.cache.blocks, 1 + 3);
  EXPECT_EQ(stats.cache.pages, kFullPages / 2 + 3 * kGroupPages);
  EXPECT_EQ(stats.cache.unlocked_pages, stats.cache.pages);
  EXPECT_EQ(stats.pages_free, stats.pages_total);
}

// A prompt that ends a section behind short blocks replays and compresses that section as a miss
// does, though the blocks stay in the cache for others.
TEST_F(Sections, AreCompressedBehindCopiesOfShortBlocks) {
  const auto engine = this->engine();
  const auto other = this->engine();
  const std::vector<int32_t> beginning = random_tokens(3 * kKvGroup);
  ask(*engine, joined(beginning, random_tokens(1)), 1);
  EXPECT_EQ(engine->stats().cache.blocks, 3);
  for (int32_t i = 0; i < 2; ++i) {
    const std::vector<int32_t> prompt = joined(beginning, random_tokens(kSection));
    std::vector<int32_t> answer;
    const Finish finish = ask(*engine, prompt, 10, &answer);
    EXPECT_EQ(finish.cached_tokens, 3 * kKvGroup);
    std::vector<int32_t> expected;
    const Finish miss = ask(*other, prompt, 10, &expected);
    EXPECT_EQ(answer, expected);
    EXPECT_EQ(finish.kv.usage.kept, miss.kv.usage.kept);
  }
}

TEST_F(Sections, AreFoundUnderTheirSaltAlone) {
  const auto engine = this->engine();
  const std::vector<int32_t> prompt = random_tokens(3 * kKvGroup + 5);
  ask(*engine, prompt, 1);
  EngineRequest request;
  request.prompt = prompt;
  request.max_tokens = 1;
  request.cache_salt = "another";
  const auto sink = std::make_shared<RecordingSink>();
  request.sinks = {sink};
  ASSERT_TRUE(engine->submit(std::move(request)).ok());
  run(*engine);
  EXPECT_EQ(sink->finish()->cached_tokens, 0);
  EXPECT_EQ(ask(*engine, prompt, 1).cached_tokens, 3 * kKvGroup);
}

// The copies need room beside the blocks. In an arena of one whole context there is none for a
// sequence of that length: it computes the tokens again instead of waiting for ever.
TEST_F(Sections, GiveUpShortBlocksWhereTheirCopiesDoNotFit) {
  const KvPreset preset = short_sections(kSection);
  const auto engine = this->engine(true, context_row_pages(kv_options(preset)));
  const std::vector<int32_t> beginning = random_tokens(3 * kKvGroup);
  ask(*engine, joined(beginning, random_tokens(1)), 1);
  const std::vector<int32_t> prompt = joined(beginning, random_tokens(kSectionContext / 2));
  const Finish finish = ask(*engine, prompt, kSectionContext);
  EXPECT_EQ(std::ssize(prompt) + finish.completion_tokens, kSectionContext);
  engine->flush_cache();
  run(*engine);
  EXPECT_EQ(engine->stats().pages_free, engine->stats().pages_total);
}

TEST_F(Sections, AreRightUnderPressureAndCancellation) {
  const auto alone = this->engine(false);
  const KvPreset preset = short_sections(kSection);
  const auto engine = this->engine(true, context_row_pages(kv_options(preset)));
  const std::vector<int32_t> document = random_tokens(400);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  std::vector<RequestId> ids;
  for (int32_t i = 0; i < 6; ++i) {
    const auto shared = static_cast<int32_t>(random_() % 400);
    std::vector<int32_t> prompt(document.begin(), document.begin() + shared);
    prompts.push_back(joined(prompt, random_tokens(1 + static_cast<int32_t>(random_() % 100))));
    ids.emplace_back();
    sinks.push_back(submit(*engine, prompts.back(), 1500, &ids.back()));
  }
  for (int32_t step = 0; engine->step(); ++step) {
    engine->kv().check_integrity();
    if (step % 700 == 650) {
      engine->cancel(ids[static_cast<size_t>(step / 700 * 3) % ids.size()]);
    }
  }
  EXPECT_GT(engine->stats().preemptions, 0);
  EXPECT_GT(engine->stats().cache.evicted_blocks, 0);
  int32_t whole = 0;
  for (size_t i = 0; i < sinks.size(); ++i) {
    std::vector<int32_t> expected;
    ask(*alone, prompts[i], 1500, &expected);
    const std::vector<int32_t> tokens = sinks[i]->tokens();
    ASSERT_LE(tokens.size(), expected.size());
    EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), expected.begin())) << "request " << i;
    whole += tokens.size() == expected.size() ? 1 : 0;
  }
  EXPECT_GT(whole, 0);
  EXPECT_LT(whole, 6);
  engine->flush_cache();
  run(*engine);
  EXPECT_EQ(engine->stats().pages_free, engine->stats().pages_total);
}

TEST_F(Sections, StayWholeForGeneratedTokensIfThePolicySaysSo) {
  KvPreset preset = short_sections(kSection);
  preset.policy.compress_generated = false;
  const auto engine = this->engine(true, 0, preset);
  std::vector<int32_t> chat = random_tokens(kSection + 10);
  std::vector<int32_t> answer;
  const Finish finish = ask(*engine, chat, 2 * kSection, &answer);
  EXPECT_EQ(finish.kv.usage.dropped, kSection / 2);
  // The next turn repeats them: then they are a prompt.
  const Finish next = ask(*engine, joined(chat, answer), 1);
  EXPECT_EQ(next.cached_tokens, 2 * kSection - kKvGroup) << "and short blocks, less than a section";
  EXPECT_EQ(next.kv.usage.dropped, 3 * kSection / 2);
}

TEST_F(Sections, StayWholeAtTheContextsEndBecauseAReplayNeedsPositions) {
  const auto engine = this->engine();
  const Finish finish = ask(*engine, random_tokens(kSectionContext - 2), 1);
  EXPECT_EQ(finish.kv.usage.dropped, (kSectionContext / kSection - 1) * kSection / 2);
}

TEST(SectionPolicies, AreRefusedByName) {
  const auto error_of = [](auto&& change) {
    KvCacheOptions options = section_options(short_sections(kSection), 2, 1024);
    change(options);
    return refusal(options);
  };
  const auto with = [&](auto&& change) {
    return error_of([&](KvCacheOptions& options) { change(options.preset.policy); });
  };
  using testing::HasSubstr;
  EXPECT_EQ(with([](KvPolicy&) {}), "");
  EXPECT_THAT(with([](KvPolicy& p) { p.section = 100; }), HasSubstr("section is 100"));
  EXPECT_THAT(with([](KvPolicy& p) { p.budget().amount = KvAmount::of_share(0.1f); }),
              HasSubstr("less than a page"));
  EXPECT_THAT(with([](KvPolicy& p) { p.sinks = 8; }), HasSubstr("sinks is 8"));
  EXPECT_THAT(with([](KvPolicy& p) { p.budget().allocator = KvAllocator::uniform; }),
              HasSubstr("needs the rule budget, the allocator pages, and keep_share"));
  EXPECT_THAT(error_of([](KvCacheOptions& options) {
                options.windows.assign(static_cast<size_t>(options.layers), 100);
              }),
              HasSubstr("sliding-window attention"));
  EXPECT_THAT(error_of([](KvCacheOptions& options) {
                options.also = {short_sections(kSection)};
                options.also[0].policy.section = 2 * kSection;
              }),
              HasSubstr("section is 512 tokens; with these presets it must be 256"));
}

TEST(SectionPolicies, AreTheSameForARequestAsForAPreset) {
  ThreadPool threads(1);
  const auto kv = KvCache::create({.preset = short_sections(kSection),
                                   .prefix_cache = true,
                                   .layers = 2,
                                   .kv_heads = 2,
                                   .head_dim = 32,
                                   .query_heads = 4,
                                   .slots = 2,
                                   .context = 512},
                                  cpu_backend(CpuIsa::scalar), threads.stream());
  KvPolicy policy = short_sections(kSection).policy;
  EXPECT_TRUE((*kv)->check(policy).ok());
  KvPolicy of_all_tokens = policy;
  of_all_tokens.scorer = KvScorer::sum;
  EXPECT_THAT(std::string((*kv)->check(of_all_tokens).message()),
              testing::HasSubstr("needs scores beside the pages"));
  KvPolicy by_output = policy;
  by_output.scorer = KvScorer::replay_output;
  policy.budget().amount = KvAmount::of_share(1);
  for (const KvPolicy& other : {policy, by_output}) {
    EXPECT_THAT(std::string((*kv)->check(other).message()), testing::HasSubstr("must be"))
        << name_of(other.scorer);
  }
}

TEST_F(Sections, AreNotSharedByTwoScorersOfOneServer) {
  KvCacheOptions options = section_options(short_sections(kSection), 2, 512);
  options.also = {short_sections(kSection, "replay-50")};
  EXPECT_THAT(refusal(options),
              testing::HasSubstr("scorer is replay_output beside a preset with replay"));
  options.also.clear();
  options.preset = short_sections(kSection, "replay-50");
  Backend without = cpu_backend(CpuIsa::scalar);
  without.weighs_output = false;
  EXPECT_THAT(refusal(options, without),
              testing::HasSubstr("no kernels for the scorer replay_output"));
}

}  // namespace
}  // namespace tessera
