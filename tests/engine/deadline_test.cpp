#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/engine_fixture.h"

namespace tessera {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

// A clock that only the test advances.
class Deadline : public testing::Test {
 protected:
  EngineOptions options() {
    EngineOptions options;
    options.context = 64;
    options.max_sequences = 2;
    options.max_step_tokens = 32;
    options.max_queue = 8;
    options.clock = [this] { return now_; };
    return options;
  }
  EngineRequest request_until(seconds time) const {
    EngineRequest request = request_of(prompt_of(20), 40);
    request.deadline = steady_clock::time_point(time);
    return request;
  }
  void expect_overdue(const RecordingSink& sink) {
    ASSERT_TRUE(sink.finish().has_value());
    EXPECT_EQ(sink.finish()->reason, FinishReason::cancelled);
    EXPECT_EQ(sink.finish()->status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(sink.finish()->completion_tokens, std::ssize(sink.tokens()));
    EXPECT_EQ(sink.events_after_finish(), 0);
  }

  steady_clock::time_point now_{seconds(1000)};
};

TEST_F(Deadline, AnEndTellsHowLongItWaitedAndHowLongItsPromptTook) {
  EngineOptions one_at_a_time = options();
  one_at_a_time.max_sequences = 1;
  FakeEngine fake(one_at_a_time);
  const auto first = fake.submit(request_of(prompt_of(40), 2));  // the prompt takes two steps
  const auto second = fake.submit(request_of(prompt_of(20), 1));
  const auto never = fake.submit(request_until(seconds(1001)));
  while (!fake.engine->idle()) {
    now_ += seconds(3);
    fake.engine->step();
  }
  using Time = std::chrono::duration<double>;
  EXPECT_EQ(first->finish()->queue_time, Time(seconds(3)));
  EXPECT_EQ(first->finish()->prefill_time, Time(seconds(3)));
  EXPECT_EQ(second->finish()->queue_time, Time(seconds(12)));
  // published in the step in which it began
  EXPECT_EQ(second->finish()->prefill_time, Time(seconds(0)));
  EXPECT_EQ(never->finish()->queue_time, std::nullopt);
  EXPECT_EQ(never->finish()->prefill_time, std::nullopt);
}

TEST_F(Deadline, EndsARunningAndAWaitingRequestWithinOneStep) {
  FakeEngine fake(options());
  const auto running = fake.submit(request_until(seconds(1010)));
  const auto other = fake.submit(request_until(seconds(2000)));
  const auto waiting = fake.submit(request_until(seconds(1010)));
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(fake.engine->step());
  }
  now_ = steady_clock::time_point(seconds(1009));
  ASSERT_TRUE(fake.engine->step());
  EXPECT_EQ(running->finish(), std::nullopt);
  const size_t tokens = running->tokens().size();
  now_ = steady_clock::time_point(seconds(1010));
  ASSERT_TRUE(fake.engine->step());
  expect_overdue(*running);
  expect_overdue(*waiting);
  EXPECT_EQ(running->tokens().size(), tokens);
  EXPECT_THAT(waiting->tokens(), testing::IsEmpty());
  EXPECT_EQ(fake.engine->stats().running, 1);
  fake.engine->kv().check_integrity();
  fake.step_until_idle();
  EXPECT_EQ(other->finish()->reason, FinishReason::length);
  EXPECT_TRUE(other->finish()->status.ok());
}

TEST_F(Deadline, EndsARequestInItsFirstStepIfItHasPassedBefore) {
  FakeEngine fake(options());
  const auto sink = fake.submit(request_until(seconds(1)));
  EXPECT_FALSE(fake.engine->step());
  expect_overdue(*sink);
  EXPECT_TRUE(fake.engine->idle());
}

TEST_F(Deadline, DoesNotTouchARequestThatIsCancelledFirst) {
  FakeEngine fake(options());
  RequestId id = 0;
  const auto sink = fake.submit(request_until(seconds(1010)), &id);
  fake.engine->step();
  fake.engine->cancel(id);
  now_ = steady_clock::time_point(seconds(1010));
  EXPECT_FALSE(fake.engine->step());
  EXPECT_EQ(sink->finish()->reason, FinishReason::cancelled);
  EXPECT_TRUE(sink->finish()->status.ok());
}

}  // namespace
}  // namespace tessera
