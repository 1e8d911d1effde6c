#include <gtest/gtest.h>

#include <numeric>

#include "engine/draft.h"
#include "engine/recent_answers.h"
#include "tests/engine/candidates.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/even_grammar.h"

namespace tessera {
namespace {

std::vector<int32_t> guessed(const Draft& draft, const std::vector<int32_t>& tokens) {
  std::vector<int32_t> out(kMostDrafted);
  out.resize(static_cast<size_t>(draft.guess(tokens, out)));
  return out;
}

TEST(Draft, IsTheTokensBehindTheLastEarlierOccurrence) {
  const Draft draft;
  EXPECT_EQ(guessed(draft, {1, 2, 3, 4, 9, 1, 2, 3, 5, 6, 7, 8, 9, 1, 2, 3}),
            (std::vector<int32_t>{5, 6, 7, 8}));
  EXPECT_EQ(guessed(draft, {1, 2, 3, 4, 5, 2, 3}), std::vector<int32_t>()) << "too short";
  EXPECT_EQ(guessed(draft, {1, 2, 3}), std::vector<int32_t>());
  EXPECT_EQ(guessed(draft, {7, 7, 7, 7}), (std::vector<int32_t>{7})) << "may overlap";
}

TEST(Draft, GrowsWhileItIsAcceptedAndShrinksWhenRefused) {
  std::vector<int32_t> tokens(100);
  std::iota(tokens.begin(), tokens.begin() + 97, 10);
  tokens[97] = 10, tokens[98] = 11, tokens[99] = 12;
  Draft draft;
  EXPECT_EQ(guessed(draft, tokens).size(), 4u);
  draft.learn(4, 4);
  EXPECT_EQ(guessed(draft, tokens).size(), 8u);
  draft.learn(8, 8);
  EXPECT_EQ(guessed(draft, tokens).size(), size_t{kMostDrafted});
  draft.learn(kMostDrafted, 3);
  EXPECT_EQ(guessed(draft, tokens).size(), 7u);
  draft.learn(7, 0);
  EXPECT_EQ(guessed(draft, tokens).size(), 0u) << "a longer occurrence is asked for";
}

std::vector<int32_t> guessed(const RecentAnswers& answers, std::string_view salt,
                             const std::vector<int32_t>& tokens, size_t most = 3) {
  std::vector<int32_t> out(most);
  out.resize(static_cast<size_t>(answers.guess(salt, tokens, out)));
  return out;
}

TEST(RecentAnswers, AreSearchedFromTheNewestUnderTheSaltAlone) {
  RecentAnswers answers;
  answers.add("a", std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_EQ(guessed(answers, "a", {9, 1, 2, 3, 4}), (std::vector<int32_t>{5, 6, 7}));
  EXPECT_EQ(guessed(answers, "a", {6, 7, 8}), std::vector<int32_t>()) << "too short";
  EXPECT_EQ(guessed(answers, "a", {5, 6, 7, 8}), std::vector<int32_t>()) << "nothing follows";
  EXPECT_EQ(guessed(answers, "b", {1, 2, 3, 4}), std::vector<int32_t>());
  answers.add("a", std::vector<int32_t>{1, 2, 3, 4, 11});
  answers.add("b", std::vector<int32_t>{1, 2, 3, 4, 12});
  EXPECT_EQ(guessed(answers, "a", {1, 2, 3, 4}), std::vector<int32_t>{11});
  EXPECT_EQ(guessed(answers, "b", {1, 2, 3, 4}), std::vector<int32_t>{12});
  answers.clear();
  EXPECT_EQ(guessed(answers, "a", {1, 2, 3, 4}), std::vector<int32_t>());
}

TEST(RecentAnswers, KeepABoundedNumberOfTheirFirstTokens) {
  RecentAnswers answers;
  std::vector<int32_t> ascending(2 * RecentAnswers::kTokens);
  std::iota(ascending.begin(), ascending.end(), 0);
  const auto from = [&](int32_t first) {
    return std::vector<int32_t>(ascending.begin() + first, ascending.begin() + first + 4);
  };
  answers.add("a", ascending);
  EXPECT_FALSE(guessed(answers, "a", from(RecentAnswers::kTokens - 5)).empty());
  EXPECT_TRUE(guessed(answers, "a", from(RecentAnswers::kTokens - 4)).empty());
  for (int32_t i = 0; i < RecentAnswers::kAnswers; ++i) {
    answers.add("a", std::vector<int32_t>{-1, -2, -3, -4, -5});
  }
  EXPECT_TRUE(guessed(answers, "a", from(0)).empty()) << "the oldest one has gone";
  answers.add(std::string(RecentAnswers::kLongestSalt + 1, 's'), ascending);
  EXPECT_TRUE(guessed(answers, std::string(RecentAnswers::kLongestSalt + 1, 's'), from(0)).empty());
}

Candidate drafting(int64_t order, int32_t tokens, int32_t drafted) {
  Candidate candidate = decoding(order, tokens);
  candidate.drafted = drafted;
  return candidate;
}

std::vector<int32_t> drafted_of(const StepPlan& plan) {
  std::vector<int32_t> drafted;
  for (const StepPlan::Run& run : plan.runs) {
    drafted.push_back(run.drafted);
    EXPECT_EQ(run.count - run.drafted, 1);
    EXPECT_TRUE(run.samples);
  }
  return drafted;
}

TEST(Scheduler, SharesTheRowsOfAStepAmongDrafts) {
  const SchedulerLimits limits{.max_step_tokens = 64, .max_sequences = 8, .max_drafting_tokens = 8};
  EXPECT_EQ(drafted_of(plan(limits, {drafting(1, 10, 5)}, budget(4))), std::vector<int32_t>{5});
  EXPECT_EQ(drafted_of(plan(limits, {drafting(1, 10, 5), drafting(2, 10, 15)}, budget(4))),
            (std::vector<int32_t>{3, 3}));
  EXPECT_EQ(drafted_of(plan(limits, {drafting(1, 10, 0), drafting(2, 10, 15)}, budget(4))),
            (std::vector<int32_t>{0, 6}));
}

TEST(Scheduler, DraftsNothingInAFullStepOrBesideAPrompt) {
  const SchedulerLimits limits{.max_step_tokens = 64, .max_sequences = 8, .max_drafting_tokens = 4};
  std::vector<Candidate> candidates;
  for (int64_t i = 1; i <= 5; ++i) candidates.push_back(drafting(i, 10, 5));
  EXPECT_EQ(drafted_of(plan(limits, candidates, budget(20))), std::vector<int32_t>(5, 0));
  const StepPlan beside = plan(limits, {drafting(1, 10, 5), waiting(2, 30)}, budget(20));
  ASSERT_EQ(beside.runs.size(), 2u);
  EXPECT_EQ(beside.runs[0].drafted, 0);
  EXPECT_EQ(beside.runs[1].count, 30);
}

// Runs requests that share many of their tokens, so that drafts are found in all of them.
struct Ran {
  std::vector<std::vector<int32_t>> texts;
  EngineStats stats;
};

Ran run(bool speculation, EngineRequest request) {
  EngineOptions options;
  options.context = 300;
  options.max_sequences = 4;
  options.max_step_tokens = 64;
  options.speculation = speculation;
  FakeEngine fake(options);
  // The fake's answers repeat nothing. Continued as a prompt, each answer is its own best draft.
  const auto first = fake.submit(request);
  fake.step_until_idle();
  const std::vector<int32_t> answer = first->tokens();
  request.prompt.insert(request.prompt.end(), answer.begin(), answer.end());
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    request.sampling.seed = seed;
    sinks.push_back(fake.submit(request));
  }
  fake.step_until_idle();
  EXPECT_EQ(fake.model->defect(), "");
  Ran ran{{answer}, fake.engine->stats()};
  for (const auto& sink : sinks) ran.texts.push_back(sink->tokens());
  return ran;
}

TEST(Speculation, ChangesNoTokenOfAnyRequest) {
  EngineRequest request = request_of(prompt_of(50), 120);
  for (const float temperature : {0.0f, 1.0f}) {
    request.sampling.temperature = temperature;
    // Few tokens to choose from make repetitions, and with them drafts.
    request.sampling.allowed_token_ids = {10, 11};
    const Ran plain = run(false, request);
    const Ran speculated = run(true, request);
    EXPECT_EQ(speculated.texts, plain.texts);
    EXPECT_EQ(plain.stats.drafts, 0);
    EXPECT_GT(speculated.stats.accepted_tokens, 50);
    EXPECT_LT(speculated.stats.accepted_tokens, speculated.stats.drafted_tokens);
    EXPECT_LT(speculated.stats.steps, plain.stats.steps);
    EXPECT_EQ(speculated.stats.generated_tokens, plain.stats.generated_tokens);
    EXPECT_EQ(speculated.stats.prompt_tokens, plain.stats.prompt_tokens);
    EXPECT_EQ(std::accumulate(speculated.stats.accepted_at.begin(),
                              speculated.stats.accepted_at.end(), int64_t{0}),
              speculated.stats.accepted_tokens);
  }
}

TEST(Speculation, EndsAtAStopTokenInsideADraft) {
  EngineRequest request = request_of(prompt_of(50), 120);
  request.sampling.allowed_token_ids = {10, 11, 12};
  request.stop_ids = {12};
  request.sampling.min_tokens = 40;
  EXPECT_EQ(run(true, request).texts, run(false, request).texts);
}

TEST(Speculation, KeepsPenaltiesOfTokensThatAreDrafted) {
  EngineRequest request = request_of(prompt_of(50), 120);
  request.sampling.allowed_token_ids = {10, 11, 12};
  request.sampling.frequency_penalty = 0.4f;
  request.sampling.dry_multiplier = 0.5f;
  request.sampling.bad_words = {{10, 11, 10, 10}};
  const Ran speculated = run(true, request);
  EXPECT_EQ(speculated.texts, run(false, request).texts);
  EXPECT_GT(speculated.stats.accepted_tokens, 0);
}

TEST(Speculation, FollowsAGrammarAlongADraft) {
  EngineRequest request = request_of(prompt_of(50), 140);
  request.ignore_eos = false;
  request.grammar = std::make_shared<EvenGrammar>(100);
  request.sampling.temperature = 1;
  // Drafts with odd tokens in them are refused where the grammar forbids them.
  request.sampling.logit_bias = {{10, 9}, {12, 9}, {11, 9}};
  const Ran speculated = run(true, request);
  EXPECT_EQ(speculated.texts, run(false, request).texts);
  EXPECT_GT(speculated.stats.accepted_tokens, 20);
  EXPECT_EQ(speculated.texts.back().size(), 100u);
}

TEST(Speculation, IsOffForARequestThatAsksForIt) {
  EngineRequest request = request_of(prompt_of(50), 120);
  request.sampling.allowed_token_ids = {10, 11};
  request.speculation = false;
  EXPECT_EQ(run(true, request).stats.drafts, 0);
}

// The fake model's answers repeat nothing, so only the same answer to another request is a draft.
TEST(Speculation, DraftsFromAnswersOfOtherRequestsUnderTheSameSalt) {
  EngineOptions options;
  options.context = 300;
  options.speculation = true;
  FakeEngine fake(options);
  EngineRequest request = request_of(prompt_of(50), 100);
  request.sampling.temperature = 0;
  const auto accepted = [&](const EngineRequest& asked) {
    const int64_t before = fake.engine->stats().accepted_tokens;
    const auto sink = fake.submit(asked);
    fake.step_until_idle();
    EXPECT_EQ(sink->tokens(), run_alone(asked, options.context).tokens);
    return fake.engine->stats().accepted_tokens - before;
  };
  EXPECT_LT(accepted(request), 5);
  EXPECT_GT(accepted(request), 50);
  EngineRequest salted = request;
  salted.cache_salt = "another";
  EXPECT_LT(accepted(salted), 5);
  EXPECT_GT(accepted(salted), 50);
  EngineRequest uncached = request;
  uncached.cache.use = false;
  EXPECT_LT(accepted(uncached), 5);
  fake.engine->flush_cache();
  EXPECT_LT(accepted(request), 5);
  EXPECT_EQ(fake.model->defect(), "");
}

TEST(Speculation, SendsTheLogProbabilitiesOfEachToken) {
  EngineRequest request = request_of(prompt_of(50), 100);
  request.sampling.allowed_token_ids = {10, 11};
  request.sampling.top_logprobs = 3;
  const auto logprobs = [&](bool speculation) {
    EngineOptions options;
    options.context = 300;
    options.speculation = speculation;
    FakeEngine fake(options);
    const auto sink = fake.submit(request);
    fake.step_until_idle();
    EXPECT_EQ(fake.engine->stats().accepted_tokens > 0, speculation);
    std::vector<std::pair<int32_t, float>> chosen;
    for (const TokenLogprob& token : sink->chosen_logprobs()) {
      chosen.emplace_back(token.token, token.logprob);
    }
    return chosen;
  };
  EXPECT_EQ(logprobs(true), logprobs(false));
}

}  // namespace
}  // namespace tessera
