#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/kv/kv_presets.h"
#include "tests/engine/engine_fixture.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

EngineOptions small_options() {
  EngineOptions options;
  options.context = 64;
  options.max_sequences = 4;
  options.max_step_tokens = 32;
  options.max_queue = 8;
  return options;
}

// Returns: the text of a request on an engine of its own.
std::vector<int32_t> text_of(const EngineRequest& request, const EngineOptions& options) {
  FakeEngine fake(options);
  const auto sink = fake.submit(request);
  fake.step_until_idle();
  EXPECT_EQ(fake.model->defect(), "");
  return sink->tokens();
}

TEST(Engine, GeneratesWhatTheModelSays) {
  FakeEngine fake(small_options());
  const EngineRequest request = request_of(prompt_of(10), 5);
  const auto sink = fake.submit(request);
  EXPECT_FALSE(fake.engine->idle());
  fake.step_until_idle();
  EXPECT_EQ(sink->tokens(), run_alone(request, 64).tokens);
  const Finish finish = sink->finish().value();
  EXPECT_EQ(finish.reason, FinishReason::length);
  EXPECT_EQ(finish.prompt_tokens, 10);
  EXPECT_EQ(finish.completion_tokens, 5);
  EXPECT_TRUE(finish.status.ok());
  EXPECT_TRUE(fake.engine->idle());
}

TEST(Engine, StepsSayWhetherTheyRanAnything) {
  FakeEngine fake(small_options());
  EXPECT_FALSE(fake.engine->step());
  fake.submit(request_of(prompt_of(3), 2));
  EXPECT_TRUE(fake.engine->step());
  EXPECT_TRUE(fake.engine->step());
  EXPECT_FALSE(fake.engine->step());
}

TEST(Engine, RefusesWhatCannotRunWithTheNumbers) {
  FakeEngine fake(small_options());
  const auto refusal = [&](EngineRequest request) {
    const auto sink = std::make_shared<RecordingSink>();
    request.sinks = {sink};
    const absl::Status status = fake.engine->submit(std::move(request)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(sink->finish(), std::nullopt);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal(request_of({}, 5)), HasSubstr("empty"));
  EXPECT_THAT(refusal(request_of(prompt_of(64), 5)),
              testing::AllOf(HasSubstr("64 tokens"), HasSubstr("context holds 64")));
  EXPECT_THAT(refusal(request_of({3, FakeModel::kVocab}, 5)), HasSubstr("prompt[1] is 61"));
  EXPECT_THAT(refusal(request_of({-1}, 5)), HasSubstr("prompt[0] is -1"));
  EXPECT_THAT(refusal(request_of({3}, -1)), HasSubstr("max_tokens is -1"));
  EngineRequest stop = request_of({3}, 1);
  stop.stop_ids = {99};
  EXPECT_THAT(refusal(stop), HasSubstr("stop_ids[0] is 99"));
  EngineRequest hot = request_of({3}, 1);
  hot.sampling.temperature = -1;
  EXPECT_THAT(refusal(hot), HasSubstr("temperature"));
  EngineRequest coarse = request_of({3}, 1);
  coarse.cache_accept = kKvS50K4V4;
  EXPECT_THAT(refusal(coarse), HasSubstr("cache.accept: the format s50-k4v4 is not served here"));
  EXPECT_TRUE(fake.engine->idle());
}

TEST(Engine, AcceptsAPromptThatLeavesRoomForOneToken) {
  FakeEngine fake(small_options());
  const auto sink = fake.submit(request_of(prompt_of(63), 5));
  fake.step_until_idle();
  EXPECT_EQ(sink->finish()->reason, FinishReason::length);
  EXPECT_EQ(sink->tokens().size(), 1) << "then the context is full";
}

TEST(Engine, EndsAtMaxTokensOrAtTheContext) {
  FakeEngine fake(small_options());
  const auto few = fake.submit(request_of(prompt_of(10), 3));
  const auto many = fake.submit(request_of(prompt_of(10), 1'000'000'000));
  fake.step_until_idle();
  EXPECT_EQ(few->tokens().size(), 3);
  EXPECT_EQ(many->tokens().size(), 54);
  EXPECT_EQ(many->finish()->reason, FinishReason::length);
}

TEST(Engine, DoesNotEmitTheTokenThatStops) {
  EngineRequest request = request_of(prompt_of(10), 40);
  const std::vector<int32_t> text = text_of(request, small_options());
  const size_t place = 7;
  ASSERT_EQ(std::count(text.begin(), text.begin() + place, text[place]), 0);
  request.stop_ids = {text[place]};
  FakeEngine fake(small_options());
  const auto sink = fake.submit(request);
  fake.step_until_idle();
  EXPECT_EQ(sink->tokens(), std::vector<int32_t>(text.begin(), text.begin() + place));
  EXPECT_EQ(sink->finish()->reason, FinishReason::stop);
  EXPECT_EQ(sink->finish()->completion_tokens, 7);
}

TEST(Engine, StopsAtTheModelsEndOfSequenceUnlessToldToIgnoreIt) {
  EngineRequest request = request_of(prompt_of(4), 60);
  request.sampling.logit_bias = {{FakeModel::kEos, 100}};
  request.ignore_eos = false;
  FakeEngine fake(small_options());
  const auto stopped = fake.submit(request);
  request.ignore_eos = true;
  const auto ignored = fake.submit(request);
  request.ignore_eos = false;
  request.sampling.min_tokens = 6;
  const auto held_back = fake.submit(request);
  fake.step_until_idle();
  EXPECT_THAT(stopped->tokens(), IsEmpty());
  EXPECT_EQ(stopped->finish()->reason, FinishReason::stop);
  EXPECT_EQ(ignored->tokens(), std::vector<int32_t>(60, FakeModel::kEos));
  EXPECT_EQ(ignored->finish()->reason, FinishReason::length);
  EXPECT_EQ(held_back->tokens().size(), 6);
  EXPECT_EQ(held_back->finish()->reason, FinishReason::stop);
}

TEST(Engine, FailsOneRequestWhoseLogitsAreNotNumbersAndNoOther) {
  FakeEngine fake(small_options());
  const auto poisoned = fake.submit(request_of({5, FakeModel::kPoison}, 5));
  const auto healthy = fake.submit(request_of(prompt_of(5), 5));
  fake.step_until_idle();
  EXPECT_EQ(poisoned->finish()->reason, FinishReason::failed);
  EXPECT_EQ(poisoned->finish()->status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(poisoned->tokens(), IsEmpty());
  EXPECT_EQ(healthy->finish()->reason, FinishReason::length);
}

TEST(Engine, RefusesARequestBeyondTheQueue) {
  EngineOptions options = small_options();
  options.max_sequences = 1;
  options.max_queue = 2;
  FakeEngine fake(options);
  fake.submit(request_of(prompt_of(5), 50));
  fake.engine->step();  // the sequence is running and no longer waits
  fake.submit(request_of(prompt_of(5), 5));
  fake.submit(request_of(prompt_of(5), 5));
  EngineRequest refused = request_of(prompt_of(5), 5);
  const auto sink = std::make_shared<RecordingSink>();
  refused.sinks = {sink};
  const absl::Status status = fake.engine->submit(refused).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("2 requests wait"));
  fake.step_until_idle();
  EXPECT_EQ(sink->finish(), std::nullopt);
}

TEST(Engine, CancelFreesPagesWithinOneStep) {
  FakeEngine fake(small_options());
  RequestId running = 0;
  RequestId in_prefill = 0;
  RequestId waiting = 0;
  const auto a = fake.submit(request_of(prompt_of(20), 40), &running);
  fake.engine->step();
  const auto b = fake.submit(request_of(prompt_of(60), 3), &in_prefill);
  fake.engine->step();
  ASSERT_EQ(fake.engine->stats().running, 2);
  const auto c = fake.submit(request_of(prompt_of(20), 40), &waiting);
  for (const RequestId id : {running, in_prefill, waiting}) {
    fake.engine->cancel(id);
    fake.engine->cancel(id);
  }
  fake.engine->cancel(12345);
  EXPECT_FALSE(fake.engine->step());
  for (const auto& sink : {a, b, c}) {
    ASSERT_TRUE(sink->finish().has_value());
    EXPECT_EQ(sink->finish()->reason, FinishReason::cancelled);
    EXPECT_EQ(sink->events_after_finish(), 0);
  }
  EXPECT_EQ(a->tokens().size(), 2);
  EXPECT_EQ(fake.engine->stats().pages_free, fake.engine->stats().pages_total);
  fake.engine->kv().check_integrity();
  fake.engine->cancel(running);  // has already ended
  EXPECT_FALSE(fake.engine->step());
}

TEST(Engine, LetsASinkCancelItsOwnRequest) {
  FakeEngine fake(small_options());
  RequestId id = 0;
  const auto sink = fake.submit(request_of(prompt_of(5), 50), &id);
  sink->after_token = [&](int32_t) {
    if (sink->tokens().size() == 3) {
      fake.engine->cancel(id);
    }
  };
  fake.step_until_idle();
  EXPECT_EQ(sink->tokens().size(), 3);
  EXPECT_EQ(sink->finish()->reason, FinishReason::cancelled);
}

TEST(Engine, ReleasesTheSinkAfterTheEnd) {
  FakeEngine fake(small_options());
  std::weak_ptr<RecordingSink> sink = fake.submit(request_of(prompt_of(5), 2));
  EXPECT_FALSE(sink.expired());
  fake.step_until_idle();
  EXPECT_TRUE(sink.expired());
}

TEST(Engine, DrainTakesNothingMoreAndFinishesTheRest) {
  FakeEngine fake(small_options());
  const auto sink = fake.submit(request_of(prompt_of(5), 5));
  fake.engine->drain();
  EngineRequest late = request_of(prompt_of(5), 5);
  late.sinks = {std::make_shared<RecordingSink>()};
  EXPECT_EQ(fake.engine->submit(late).status().code(), absl::StatusCode::kUnavailable);
  fake.step_until_idle();
  EXPECT_EQ(sink->finish()->reason, FinishReason::length);
}

TEST(Engine, StopEndsEverythingOnce) {
  FakeEngine fake(small_options());
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 6; ++i) {
    sinks.push_back(fake.submit(request_of(prompt_of(20, i), 40)));
  }
  fake.engine->step();
  sinks.push_back(fake.submit(request_of(prompt_of(20), 40)));  // still in the channel
  fake.engine->stop();
  fake.engine->stop();
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->finish().has_value());
    EXPECT_EQ(sink->finish()->reason, FinishReason::cancelled);
    EXPECT_EQ(sink->events_after_finish(), 0);
  }
  EXPECT_EQ(fake.engine->stats().pages_free, fake.engine->stats().pages_total);
  EngineRequest late = request_of(prompt_of(5), 5);
  late.sinks = {std::make_shared<RecordingSink>()};
  EXPECT_EQ(fake.engine->submit(late).status().code(), absl::StatusCode::kUnavailable);
}

TEST(Engine, GivesTheSameTextAloneInABatchInChunksAndAfterPreemption) {
  EngineOptions alone = small_options();
  alone.context = 256;
  alone.max_sequences = 1;
  EngineOptions batched = alone;
  batched.max_sequences = 32;
  EngineOptions chunked = alone;
  chunked.max_sequences = 4;
  chunked.max_step_tokens = 7;
  EngineOptions starved = batched;
  starved.kv_bytes = FakeEngine::kv_bytes(starved, 9);

  std::vector<EngineRequest> requests;
  for (int32_t i = 0; i < 32; ++i) {
    requests.push_back(request_of(prompt_of(50 + 3 * i, i), 100));
    requests.back().sampling.temperature = i % 3 == 0 ? 0.0f : 0.8f;
    requests.back().sampling.seed = static_cast<uint64_t>(i);
  }
  std::vector<std::vector<int32_t>> texts;
  for (const EngineRequest& request : requests) {
    texts.push_back(text_of(request, alone));
  }
  for (EngineOptions options : {batched, chunked, starved}) {
    options.max_queue = 40;
    FakeEngine fake(options);
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    for (const EngineRequest& request : requests) {
      sinks.push_back(fake.submit(request));
    }
    fake.step_until_idle();
    for (size_t i = 0; i < sinks.size(); ++i) {
      EXPECT_EQ(sinks[i]->tokens(), texts[i]) << "request " << i;
    }
    EXPECT_EQ(fake.engine->stats().preemptions > 0, options.kv_bytes > 0);
    EXPECT_EQ(fake.model->defect(), "");
  }
}

TEST(Engine, RunsABetterPriorityFirst) {
  EngineOptions options = small_options();
  options.max_sequences = 1;
  FakeEngine fake(options);
  const auto running = fake.submit(request_of(prompt_of(5), 30));
  fake.engine->step();
  const auto ordinary = fake.submit(request_of(prompt_of(5), 5));
  EngineRequest urgent = request_of(prompt_of(5), 5);
  urgent.priority = -1;
  const auto first = fake.submit(urgent);
  while (!first->finish().has_value()) {
    ASSERT_TRUE(fake.engine->step());
  }
  EXPECT_FALSE(running->finish().has_value());
  EXPECT_FALSE(ordinary->finish().has_value());
  EXPECT_EQ(running->tokens().size(), 1);
  fake.step_until_idle();
  EXPECT_EQ(running->tokens().size(), 30);
  EXPECT_EQ(fake.engine->stats().preemptions, 1);
}

TEST(Engine, ReportsLogProbabilitiesWithTheirTokens) {
  FakeEngine fake(small_options());
  EngineRequest request = request_of(prompt_of(5), 4);
  request.sampling.temperature = 0;
  request.sampling.top_logprobs = 3;
  const auto sink = fake.submit(request);
  const auto plain = fake.submit(request_of(prompt_of(5), 4));
  fake.step_until_idle();
  ASSERT_EQ(sink->chosen_logprobs().size(), 4);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(sink->chosen_logprobs()[i].token, sink->tokens()[i]);
    EXPECT_LT(sink->chosen_logprobs()[i].logprob, 0);
  }
  ASSERT_EQ(sink->last_top().size(), 3);
  EXPECT_EQ(sink->last_top()[0].token, sink->tokens().back()) << "greedy takes the likeliest";
  EXPECT_THAT(plain->chosen_logprobs(), IsEmpty());
}

TEST(Engine, CountsWhatItDid) {
  EngineOptions options = small_options();
  options.context = 128;
  options.max_step_tokens = 64;
  options.prefix_cache = false;
  options.kv_bytes = FakeEngine::kv_bytes(options, 2);
  FakeEngine fake(options);
  const EngineStats before = fake.engine->stats();
  EXPECT_EQ(before.pages_total, 2 * FakeEngine::kHeads);
  EXPECT_EQ(before.pages_free, before.pages_total);
  EXPECT_EQ(before.token_capacity, 128);
  EXPECT_EQ(before.page_tokens, 64);
  EXPECT_GT(before.residual_bytes, 0);
  EXPECT_EQ(fake.engine->options().kv_bytes,
            before.pages_total * before.page_bytes + before.residual_bytes + before.table_bytes);
  EXPECT_EQ(fake.engine->options().kv_bytes, options.kv_bytes);
  fake.submit(request_of(prompt_of(100), 5));
  fake.submit(request_of(prompt_of(100), 5));
  fake.engine->step();
  EngineStats stats = fake.engine->stats();
  EXPECT_EQ(stats.running, 1);
  EXPECT_EQ(stats.waiting, 1);
  EXPECT_EQ(stats.pages_free, 1 * FakeEngine::kHeads);
  fake.step_until_idle();
  stats = fake.engine->stats();
  EXPECT_EQ(stats.steps, 2 * (2 + 4));
  EXPECT_EQ(stats.prompt_tokens, 200);
  EXPECT_EQ(stats.generated_tokens, 10);
  EXPECT_EQ(stats.preemptions, 0);
  EXPECT_EQ(stats.running + stats.waiting, 0);
  EXPECT_EQ(stats.pages_free, stats.pages_total);
}

TEST(EngineOptions, AreRefusedByNameWhenTheyMakeNoSense) {
  ThreadPool threads(1);
  const auto refusal = [&](auto change) {
    EngineOptions options = small_options();
    change(options);
    const auto made = Engine::create(options, std::make_unique<FakeModel>(64),
                                     cpu_backend(CpuIsa::scalar), threads.stream());
    EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(made.status().message());
  };
  EXPECT_THAT(refusal([](auto& o) { o.max_sequences = 0; }), HasSubstr("max_sequences is 0"));
  EXPECT_THAT(refusal([](auto& o) { o.max_queue = 0; }), HasSubstr("max_queue is 0"));
  EXPECT_THAT(refusal([](auto& o) { o.kv_bytes = -1; }), HasSubstr("kv_bytes is -1"));
  EXPECT_THAT(refusal([](auto& o) { o.kv_bytes = 1000; }), HasSubstr("1000 bytes"));
  EXPECT_THAT(refusal([](auto& o) { o.max_step_tokens = 3; }), HasSubstr("max_step_tokens is 3"));
  EXPECT_THAT(refusal([](auto& o) { o.context = 65; }),
              testing::AllOf(HasSubstr("65"), HasSubstr("64")));
  EXPECT_THAT(refusal([](auto& o) {
                o.kv = uniform_kv({3, 3});
              }),
              HasSubstr("3 key and 3 value bits"));
}

class StretchedModel : public FakeModel {
 public:
  StretchedModel() : FakeModel(64), stretched_(FakeModel::config()) {
    stretched_.rope_scaling = {
        .kind = RopeScaling::Kind::yarn, .factor = 4, .original_context = 64};
  }
  const ModelConfig& config() const override { return stretched_; }

 private:
  ModelConfig stretched_;
};

TEST(EngineOptions, MayHaveTheContextThatYarnStretches) {
  ThreadPool threads(1);
  const auto made = [&](int32_t context) {
    EngineOptions options = small_options();
    options.context = context;
    return Engine::create(options, std::make_unique<StretchedModel>(), cpu_backend(CpuIsa::scalar),
                          threads.stream())
        .status();
  };
  EXPECT_TRUE(made(256).ok()) << made(256);
  EXPECT_THAT(std::string(made(257).message()), HasSubstr("made for 256"));
}

}  // namespace
}  // namespace tessera
