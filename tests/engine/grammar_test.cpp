// Requests whose tokens follow a grammar. The engine sees masks only: these grammars are functions
// of the tokens so far.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "engine/kv/kv_presets.h"
#include "kernels/ops/sampling.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/even_grammar.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

EngineOptions options_of(int32_t max_sequences, int64_t pages = 0) {
  EngineOptions options;
  options.context = 256;
  options.max_sequences = max_sequences;
  options.max_step_tokens = 32;
  options.max_queue = 32;
  options.kv_bytes = pages == 0 ? 0 : FakeEngine::kv_bytes(options, pages);
  return options;
}

EngineRequest constrained(int32_t prompt, int32_t max_tokens, int32_t length) {
  EngineRequest request = request_of(prompt_of(prompt), max_tokens);
  request.ignore_eos = false;
  request.grammar = std::make_shared<EvenGrammar>(length);
  request.sampling.seed = static_cast<uint64_t>(prompt);
  request.sampling.temperature = 3;
  return request;
}

void expect_even(const std::vector<int32_t>& tokens, size_t length) {
  EXPECT_EQ(tokens.size(), length);
  EXPECT_TRUE(std::all_of(tokens.begin(), tokens.end(), [](int32_t token) {
    return EvenGrammar::allowed(token);
  })) << testing::PrintToString(tokens);
}

TEST(Grammar, ChoosesAllTokensAndTheEnd) {
  FakeEngine fake(options_of(4));
  const auto sink = fake.submit(constrained(20, 100, 12));
  const auto free = fake.submit(request_of(prompt_of(20), 30));
  fake.step_until_idle();
  expect_even(sink->tokens(), 12);
  EXPECT_EQ(sink->finish()->reason, FinishReason::stop);
  EXPECT_EQ(free->tokens(), run_alone(request_of(prompt_of(20), 30), 256).tokens)
      << "a neighbour without a grammar has its own text";
}

TEST(Grammar, IsFollowedByEachSampleAlone) {
  FakeEngine fake(options_of(8));
  const auto sinks = fake.submit_samples(constrained(70, 100, 9), 5);
  fake.step_until_idle();
  for (const auto& sink : sinks) {
    expect_even(sink->tokens(), 9);
  }
  EXPECT_NE(sinks[0]->tokens(), sinks[1]->tokens());
}

TEST(Grammar, HasTheSameTextOnAnyNumberOfThreads) {
  const auto texts = [](int threads) {
    ThreadPool pool(threads);
    EngineOptions options = options_of(8);
    options.kv = kKvPresetF32;
    auto engine = Engine::create(options, std::make_unique<FakeModel>(options.context),
                                 cpu_backend(CpuIsa::scalar), pool.stream());
    EXPECT_TRUE(engine.ok()) << engine.status();
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    for (int32_t i = 0; i < 8; ++i) {
      sinks.push_back(std::make_shared<RecordingSink>());
      EngineRequest request = constrained(20 + i, 100, 30 + i);
      request.sinks = {sinks.back()};
      EXPECT_TRUE((*engine)->submit(std::move(request)).ok());
    }
    while ((*engine)->step()) {
    }
    std::vector<std::vector<int32_t>> tokens;
    for (const auto& sink : sinks) {
      expect_even(sink->tokens(), 30 + tokens.size());
      tokens.push_back(sink->tokens());
    }
    return tokens;
  };
  EXPECT_EQ(texts(3), texts(1));
}

TEST(Grammar, SurvivesPreemption) {
  const auto texts = [](int64_t pages) {
    FakeEngine fake(options_of(8, pages));
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    for (int32_t i = 0; i < 8; ++i) {
      sinks.push_back(fake.submit(constrained(40 + i, 200, 120)));
    }
    fake.step_until_idle();
    EXPECT_EQ(fake.engine->stats().preemptions > 0, pages > 0);
    std::vector<std::vector<int32_t>> tokens;
    for (const auto& sink : sinks) {
      expect_even(sink->tokens(), 120);
      tokens.push_back(sink->tokens());
    }
    return tokens;
  };
  EXPECT_EQ(texts(5), texts(0)) << "recompute changes no token";
}

TEST(Grammar, LeavesLogprobsToTheModel) {
  FakeEngine fake(options_of(2));
  EngineRequest request = constrained(20, 100, 3);
  request.sampling.top_logprobs = 20;
  const auto sink = fake.submit(std::move(request));
  fake.step_until_idle();
  const std::vector<TokenLogprob> top = sink->last_top();
  ASSERT_EQ(top.size(), 20);
  EXPECT_TRUE(std::any_of(top.begin(), top.end(), [](TokenLogprob one) {
    return !EvenGrammar::allowed(one.token);
  })) << "the likeliest tokens are the model's, not the mask's";
}

TEST(Grammar, EndsAtMaxTokensWhereItIsLonger) {
  FakeEngine fake(options_of(2));
  const auto sink = fake.submit(constrained(20, 5, 50));
  fake.step_until_idle();
  expect_even(sink->tokens(), 5);
  EXPECT_EQ(sink->finish()->reason, FinishReason::length);
}

TEST(Grammar, FailsItsRequestAloneIfItLeavesNoToken) {
  FakeEngine fake(options_of(4));
  EngineRequest stuck = constrained(20, 100, 4);
  stuck.sampling.min_tokens = 10;  // forbids the end that the grammar demands
  const auto sink = fake.submit(std::move(stuck));
  const auto other = fake.submit(constrained(30, 100, 8));
  fake.step_until_idle();
  EXPECT_EQ(sink->finish()->reason, FinishReason::failed);
  EXPECT_THAT(sink->finish()->status.message(), HasSubstr("the grammar leave"));
  expect_even(other->tokens(), 8);
}

TEST(Grammar, IsNotCombinedWithAnIgnoredEnd) {
  FakeEngine fake(options_of(2));
  EngineRequest request = constrained(20, 100, 4);
  request.ignore_eos = true;
  request.sinks = {std::make_shared<RecordingSink>()};
  const auto refused = fake.engine->submit(std::move(request)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("ignore_eos"));
}

}  // namespace
}  // namespace tessera
