// Outputs of a request besides its text: logits, log probabilities of its prompt, forced tokens.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/engine/engine_fixture.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int32_t kObservedContext = 128;

EngineOptions observed_options(int32_t max_step_tokens, int64_t arena_pages = 0) {
  EngineOptions options;
  options.context = kObservedContext;
  options.max_sequences = 4;
  options.max_step_tokens = max_step_tokens;
  options.max_queue = 16;
  options.kv_bytes = arena_pages == 0 ? 0 : FakeEngine::kv_bytes(options, arena_pages);
  return options;
}

std::vector<float> logits_after(std::vector<int32_t> tokens, size_t count) {
  std::vector<float> logits(FakeModel::kVocab);
  tokens.resize(count);
  FakeModel::logits_after(tokens, logits);
  return logits;
}

double log_softmax(const std::vector<float>& logits, int32_t token) {
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(double{logit});
  }
  return double{logits[static_cast<size_t>(token)]} - std::log(sum);
}

// Expects the model's logits of every computed position, once, in order, before its token.
void expect_logits_of_every_position(const EngineRequest& request, const RecordingSink& sink) {
  std::vector<int32_t> tokens = request.prompt;
  const std::vector<int32_t> generated = sink.tokens();
  tokens.insert(tokens.end(), generated.begin(), generated.end());
  const auto observed = sink.logits();
  ASSERT_EQ(observed.size(), tokens.size() - (generated.empty() ? 0 : 1));
  for (size_t i = 0; i < observed.size(); ++i) {
    ASSERT_EQ(observed[i].position, i);
    ASSERT_EQ(observed[i].values, logits_after(tokens, i + 1));
    const size_t told = i + 1 > request.prompt.size() ? i + 1 - request.prompt.size() : 0;
    ASSERT_EQ(observed[i].tokens_before, told);
  }
}

void expect_prompt_logprobs(const EngineRequest& request, const RecordingSink& sink) {
  const auto logprobs = sink.prompt_logprobs();
  ASSERT_EQ(logprobs.size(), request.prompt.size() - 1);
  for (size_t i = 0; i < logprobs.size(); ++i) {
    ASSERT_EQ(logprobs[i].token, request.prompt[i + 1]);
    ASSERT_NEAR(logprobs[i].logprob,
                log_softmax(logits_after(request.prompt, i + 1), request.prompt[i + 1]), 1e-5);
  }
  EXPECT_EQ(sink.late_prompt_events(), 0);
}

struct Shape {
  std::string name;
  int32_t max_step_tokens = 0;
  int64_t arena_pages = 0;  // of each head; 0: enough for all
};

class Observation : public testing::TestWithParam<Shape> {};

TEST_P(Observation, TellsEveryPositionOnceInOrderBesideOtherLoad) {
  FakeEngine fake(observed_options(GetParam().max_step_tokens, GetParam().arena_pages));
  std::vector<EngineRequest> requests;
  for (int32_t i = 0; i < 12; ++i) {
    EngineRequest request = request_of(prompt_of(45 + 4 * i, i), 20 + i % 5);
    request.sampling.seed = static_cast<uint64_t>(i);
    request.observe_logits = i % 3 != 2;
    if (i % 3 != 1) {
      request.sampling.prompt_logprobs = i % 4;
    }
    if (i % 4 == 3) {
      request.forced = prompt_of(9, 3 * i);
    }
    requests.push_back(request);
  }
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (const EngineRequest& request : requests) {
    sinks.push_back(fake.submit(request));
  }
  fake.step_until_idle();
  EXPECT_EQ(fake.model->defect(), "");
  EXPECT_EQ(fake.engine->stats().preemptions > 0, GetParam().arena_pages > 0);
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE("request " + std::to_string(i));
    EXPECT_EQ(sinks[i]->tokens(), run_alone(requests[i], kObservedContext).tokens);
    if (requests[i].observe_logits) {
      expect_logits_of_every_position(requests[i], *sinks[i]);
    } else {
      EXPECT_THAT(sinks[i]->logits(), IsEmpty());
    }
    if (requests[i].sampling.prompt_logprobs.has_value()) {
      expect_prompt_logprobs(requests[i], *sinks[i]);
    } else {
      EXPECT_THAT(sinks[i]->prompt_logprobs(), IsEmpty());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Steps, Observation,
                         testing::Values(Shape{"whole", 512}, Shape{"of7", 7}, Shape{"of4", 4},
                                         Shape{"of20_preempted", 20, 2},
                                         Shape{"of100_preempted", 100, 3}),
                         [](const auto& shape) { return shape.param.name; });

TEST(PromptLogprobs, ComeWithTheLikeliestAlternatives) {
  FakeEngine fake(observed_options(32));
  EngineRequest request = request_of(prompt_of(10), 1);
  request.sampling.prompt_logprobs = 4;
  struct Sink : RecordingSink {
    void on_prompt_logprobs(const TokenLogprobs& logprobs) override {
      ASSERT_EQ(logprobs.top.size(), 4);
      for (size_t i = 1; i < 4; ++i) {
        EXPECT_GE(logprobs.top[i - 1].logprob, logprobs.top[i].logprob);
      }
      ++calls;
    }
    int calls = 0;
  };
  const auto sink = std::make_shared<Sink>();
  request.sinks = {sink};
  ASSERT_TRUE(fake.engine->submit(request).ok());
  fake.step_until_idle();
  EXPECT_EQ(sink->calls, 9);
}

TEST(PromptLogprobs, FailTheRequestWhereTheModelSaysNothing) {
  FakeEngine fake(observed_options(32));
  EngineRequest request = request_of({5, FakeModel::kPoison, 7}, 0);
  request.sampling.prompt_logprobs = 0;
  const auto sink = fake.submit(request);
  fake.step_until_idle();
  EXPECT_EQ(sink->prompt_logprobs().size(), 1);
  EXPECT_EQ(sink->finish()->reason, FinishReason::failed);
  EXPECT_THAT(std::string(sink->finish()->status.message()), HasSubstr("after 2 tokens"));
}

TEST(PromptLogprobs, AreRefusedBeyondTheLimit) {
  FakeEngine fake(observed_options(32));
  EngineRequest request = request_of(prompt_of(3), 1);
  request.sampling.prompt_logprobs = 21;
  request.sinks = {std::make_shared<RecordingSink>()};
  EXPECT_THAT(std::string(fake.engine->submit(request).status().message()),
              HasSubstr("prompt_logprobs is 21"));
}

TEST(PrefillOnly, EndsWhenThePromptIsComputed) {
  FakeEngine fake(observed_options(8));
  EngineRequest request = request_of(prompt_of(kObservedContext), 0);
  request.observe_logits = true;
  request.sampling.prompt_logprobs = 1;
  const auto sink = fake.submit(request);
  const auto silent = fake.submit(request_of(prompt_of(20), 0));
  fake.step_until_idle();
  EXPECT_EQ(sink->finish()->reason, FinishReason::length);
  EXPECT_EQ(sink->finish()->completion_tokens, 0);
  EXPECT_THAT(sink->tokens(), IsEmpty());
  expect_logits_of_every_position(request, *sink);
  expect_prompt_logprobs(request, *sink);
  EXPECT_EQ(silent->finish()->reason, FinishReason::length);
  EXPECT_EQ(fake.engine->stats().steps, 19) << "148 tokens, 8 a step";
  EXPECT_EQ(fake.engine->stats().pages_free, fake.engine->stats().pages_total);
}

TEST(ForcedTokens, AreTakenEvenIfUnlikelyOrAStop) {
  FakeEngine fake(observed_options(32));
  EngineRequest request = request_of(prompt_of(10), 1);
  request.ignore_eos = false;
  request.stop_ids = {9};
  request.forced = {7, FakeModel::kEos, 9, 4};
  request.sampling.top_logprobs = 2;
  const auto sink = fake.submit(request);
  fake.step_until_idle();
  EXPECT_EQ(sink->tokens(), request.forced);
  EXPECT_EQ(sink->finish()->reason, FinishReason::length);
  EXPECT_EQ(sink->finish()->completion_tokens, 4);
  std::vector<int32_t> tokens = request.prompt;
  tokens.insert(tokens.end(), request.forced.begin(), request.forced.end());
  ASSERT_EQ(sink->chosen_logprobs().size(), 4);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(sink->chosen_logprobs()[i].logprob,
                log_softmax(logits_after(tokens, 10 + i), request.forced[i]), 1e-5);
  }
}

TEST(ForcedTokens, AreRefusedWhereTheyDoNotFit) {
  FakeEngine fake(observed_options(32));
  const auto refusal = [&](EngineRequest request) {
    request.sinks = {std::make_shared<RecordingSink>()};
    return std::string(fake.engine->submit(std::move(request)).status().message());
  };
  EngineRequest request = request_of(prompt_of(124), 1);
  request.forced = {3, 4, 5, 6, 7};
  EXPECT_THAT(refusal(request), testing::AllOf(HasSubstr("124 tokens"), HasSubstr("5 are forced"),
                                               HasSubstr("context holds 128")));
  request.forced = {3, FakeModel::kVocab};
  EXPECT_THAT(refusal(request), HasSubstr("forced[1] is 61"));
  EXPECT_THAT(refusal(request_of(prompt_of(129), 0)), HasSubstr("129 tokens"));
}

}  // namespace
}  // namespace tessera
