// Requests with several samples. Each has the text that it would have alone; the prompt is computed
// once and its pages are shared.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/engine_fixture.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kSampledContext = 256;
constexpr int64_t kRow = FakeEngine::kHeads;  // pages of all heads for one group of tokens

EngineOptions sampled_options(int32_t max_sequences, int64_t arena_pages = 0) {
  EngineOptions options;
  options.context = kSampledContext;
  options.max_sequences = max_sequences;
  options.max_step_tokens = 32;
  options.max_queue = 16;
  options.kv_bytes = arena_pages == 0 ? 0 : FakeEngine::kv_bytes(options, arena_pages);
  return options;
}

EngineRequest seeded(int32_t prompt, int32_t max_tokens) {
  EngineRequest request = request_of(prompt_of(prompt), max_tokens);
  request.sampling.seed = 1000;
  return request;
}

using Sinks = std::vector<std::shared_ptr<RecordingSink>>;

void expect_texts(const EngineRequest& request, const Sinks& sinks) {
  for (size_t i = 0; i < sinks.size(); ++i) {
    EXPECT_EQ(sinks[i]->tokens(), run_alone(sample_of(request, i), kSampledContext).tokens) << i;
    ASSERT_TRUE(sinks[i]->finish().has_value());
    EXPECT_EQ(sinks[i]->finish()->reason, FinishReason::length);
    EXPECT_EQ(sinks[i]->events_after_finish(), 0);
  }
}

void expect_all_free(const FakeEngine& fake) {
  EXPECT_EQ(fake.model->defect(), "");
  EXPECT_TRUE(fake.engine->idle());
  EXPECT_EQ(fake.engine->stats().pages_free, fake.engine->stats().pages_total);
}

TEST(Samples, HaveTheTextsOfTheirSeedsAndComputeThePromptOnce) {
  FakeEngine fake(sampled_options(8));
  const EngineRequest request = seeded(70, 10);
  const Sinks sinks = fake.submit_samples(request, 5);
  fake.step_until_idle();
  expect_texts(request, sinks);
  EXPECT_NE(sinks[0]->tokens(), sinks[1]->tokens());
  EXPECT_EQ(fake.engine->stats().prompt_tokens, 69 + 5) << "the last token is each sample's own";
  EXPECT_EQ(fake.engine->stats().generated_tokens, 5 * 10);
  expect_all_free(fake);
}

TEST(Samples, ShareThePagesThatThePromptFills) {
  FakeEngine fake(sampled_options(8));
  fake.submit_samples(seeded(190, 5), 3);
  for (int i = 0; i < 6 + 3; ++i) {
    fake.engine->step();
  }
  const EngineStats stats = fake.engine->stats();
  EXPECT_EQ(stats.running, 3);
  EXPECT_EQ(stats.pages_total - stats.pages_free, kRow * (2 + 3)) << "two shared, one each";
  fake.engine->kv().check_integrity();
}

TEST(Samples, OfEveryPromptLengthAroundAPageBorder) {
  for (int32_t length = 1; length <= 2 * FakeEngine::kPageTokens + 2; ++length) {
    SCOPED_TRACE(length);
    FakeEngine fake(sampled_options(4));
    const EngineRequest request = seeded(length, 20);
    const Sinks sinks = fake.submit_samples(request, 3);
    fake.step_until_idle();
    expect_texts(request, sinks);
    expect_all_free(fake);
  }
}

TEST(Samples, ShareThePromptAlsoWhenAllEndAtOnce) {
  for (const int32_t max_tokens : {0, 1}) {
    FakeEngine fake(sampled_options(8));
    const EngineRequest request = seeded(60, max_tokens);
    const Sinks sinks = fake.submit_samples(request, 6);
    fake.step_until_idle();
    expect_texts(request, sinks);
    EXPECT_EQ(fake.engine->stats().prompt_tokens, 59 + 6);
    expect_all_free(fake);
  }
}

TEST(Samples, BeyondTheSlotsForkFromThoseThatStillRun) {
  FakeEngine fake(sampled_options(2));
  const EngineRequest request = seeded(50, 8);
  const Sinks sinks = fake.submit_samples(request, 5);
  fake.step_until_idle();
  expect_texts(request, sinks);
  expect_all_free(fake);
  EXPECT_GE(fake.engine->stats().prompt_tokens, 49 + 5);
}

TEST(Samples, ForkFromOneWhoseOpenGroupHasClosedSince) {
  for (const int32_t prompt : {60, 190}) {
    FakeEngine fake(sampled_options(2));
    const EngineRequest request = seeded(prompt, 40);
    RequestId id = 0;
    const Sinks sinks = fake.submit_samples(request, 3, &id);
    // The second sample ends after the first has continued; then the third gets a slot.
    while (sinks[1]->tokens().size() < 20) {
      ASSERT_TRUE(fake.engine->step());
    }
    fake.engine->cancel(id + 1);
    fake.step_until_idle();
    for (const size_t i : {0u, 2u}) {
      EXPECT_EQ(sinks[i]->tokens(), run_alone(sample_of(request, i), kSampledContext).tokens);
    }
    const int32_t shared = (prompt - 1) / kKvGroup * kKvGroup;
    EXPECT_EQ(fake.engine->stats().prompt_tokens, prompt - 1 + 2 + prompt - shared);
    expect_all_free(fake);
  }
}

TEST(Samples, RunOneByOneInASingleSlot) {
  FakeEngine fake(sampled_options(1));
  const EngineRequest request = seeded(20, 6);
  const Sinks sinks = fake.submit_samples(request, 4);
  fake.step_until_idle();
  expect_texts(request, sinks);
  EXPECT_EQ(fake.engine->stats().prompt_tokens, 4 * 20) << "no sample is left to fork from";
  expect_all_free(fake);
}

TEST(Samples, WaitWherePagesDoNotSufficeForAllForks) {
  FakeEngine fake(sampled_options(8, 7));
  const EngineRequest request = seeded(60, 150);
  const Sinks sinks = fake.submit_samples(request, 6);
  fake.step_until_idle();
  expect_texts(request, sinks);
  EXPECT_GT(fake.engine->stats().preemptions, 0);
  expect_all_free(fake);
}

TEST(Samples, AreComputedAnewAfterTheyWerePreemptedTogether) {
  FakeEngine fake(sampled_options(4, 4));
  EngineRequest request = seeded(130, 60);
  request.priority = 1;
  const Sinks sinks = fake.submit_samples(request, 3);
  for (int i = 0; i < 10; ++i) {
    fake.engine->step();
  }
  ASSERT_EQ(fake.engine->stats().running, 3);
  const EngineRequest urgent = seeded(200, 5);
  const auto first = fake.submit(urgent);
  fake.engine->step();
  fake.engine->kv().check_integrity();
  EXPECT_EQ(fake.engine->stats().running, 1);
  fake.step_until_idle();
  EXPECT_EQ(first->tokens(), run_alone(urgent, kSampledContext).tokens);
  expect_texts(request, sinks);
  expect_all_free(fake);
}

TEST(Samples, AreCancelledOneByOne) {
  for (size_t cancelled = 0; cancelled < 4; ++cancelled) {
    for (int steps = 0; steps < 8; ++steps) {  // before, during and after prefill
      SCOPED_TRACE(testing::Message() << "sample " << cancelled << " after step " << steps);
      FakeEngine fake(sampled_options(3));
      const EngineRequest request = seeded(70, 12);
      RequestId id = 0;
      Sinks sinks = fake.submit_samples(request, 4, &id);
      for (int i = 0; i < steps; ++i) {
        fake.engine->step();
      }
      fake.engine->cancel(id + cancelled);
      fake.engine->step();
      fake.engine->kv().check_integrity();
      ASSERT_TRUE(sinks[cancelled]->finish().has_value());
      EXPECT_EQ(sinks[cancelled]->finish()->reason, FinishReason::cancelled);
      fake.step_until_idle();
      for (size_t i = 0; i < 4; ++i) {
        if (i != cancelled) {
          EXPECT_EQ(sinks[i]->tokens(), run_alone(sample_of(request, i), kSampledContext).tokens);
        }
      }
      expect_all_free(fake);
    }
  }
}

TEST(Samples, ReceiveThePromptOnceEachEvenIfTheFirstIsCancelledDuringIt) {
  for (int steps = 0; steps < 8; ++steps) {
    SCOPED_TRACE(steps);
    EngineOptions options = sampled_options(3);
    options.max_step_tokens = 16;
    FakeEngine fake(options);
    EngineRequest request = seeded(70, 4);
    request.observe_logits = true;
    request.sampling.prompt_logprobs = 2;
    RequestId id = 0;
    const Sinks sinks = fake.submit_samples(request, 4, &id);
    for (int i = 0; i < steps; ++i) {
      fake.engine->step();
    }
    fake.engine->cancel(id);
    fake.step_until_idle();
    for (size_t i = 1; i < 4; ++i) {
      const auto logits = sinks[i]->logits();
      ASSERT_EQ(logits.size(), 70 + 3);
      for (size_t position = 0; position < logits.size(); ++position) {
        ASSERT_EQ(logits[position].position, position);
      }
      const auto logprobs = sinks[i]->prompt_logprobs();
      ASSERT_EQ(logprobs.size(), 69);
      for (size_t position = 0; position < logprobs.size(); ++position) {
        ASSERT_EQ(logprobs[position].token, request.prompt[position + 1]);
      }
      EXPECT_EQ(sinks[i]->late_prompt_events(), 0);
    }
    expect_all_free(fake);
  }
}

TEST(Samples, EndTogetherWithTheirDeadline) {
  std::chrono::steady_clock::time_point now;
  EngineOptions options = sampled_options(3);
  options.clock = [&] { return now; };
  FakeEngine fake(options);
  EngineRequest request = seeded(40, 30);
  request.deadline = now + std::chrono::seconds(1);
  const Sinks sinks = fake.submit_samples(request, 5);
  for (int i = 0; i < 6; ++i) {
    fake.engine->step();
  }
  now += std::chrono::seconds(1);
  EXPECT_FALSE(fake.engine->step());
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->finish().has_value());
    EXPECT_EQ(sink->finish()->status.code(), absl::StatusCode::kDeadlineExceeded);
  }
  fake.engine->kv().check_integrity();
  expect_all_free(fake);
}

TEST(Samples, AreQueuedTogetherOrNotAtAll) {
  EngineOptions options = sampled_options(1);
  options.max_queue = 4;
  FakeEngine fake(options);
  EngineRequest request = seeded(10, 5);
  const auto refusal = [&](size_t samples) {
    Sinks sinks(samples);
    for (auto& sink : sinks) {
      sink = std::make_shared<RecordingSink>();
    }
    request.sinks.assign(sinks.begin(), sinks.end());
    const absl::Status status = fake.engine->submit(request).status();
    for (const auto& sink : sinks) {
      EXPECT_EQ(sink->finish(), std::nullopt);
    }
    return status;
  };
  EXPECT_EQ(refusal(5).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refusal(5).message()), HasSubstr("5 samples, the queue takes 4"));
  fake.submit_samples(request, 3);
  EXPECT_EQ(refusal(2).code(), absl::StatusCode::kResourceExhausted);
  fake.submit_samples(request, 1);
  fake.step_until_idle();
  expect_all_free(fake);
}

}  // namespace
}  // namespace tessera
