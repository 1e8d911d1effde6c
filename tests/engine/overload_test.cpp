// Refusals by expected wait, queue timeouts, and the division of the queue among tenants.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/expected_wait.h"
#include "engine/retry_after.h"
#include "tests/engine/engine_fixture.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

TEST(ExpectedWait, IsTheTimeOfTheAdmissionsBefore) {
  ExpectedWait wait;
  steady_clock::time_point now{seconds(100)};
  wait.begin(now);
  EXPECT_EQ(wait.behind(0, now).count(), 0);
  for (int i = 0; i < 200; ++i) {
    now += milliseconds(500);
    wait.admitted(now);
  }
  EXPECT_NEAR(wait.behind(9, now).count(), 5, 1e-9);
  EXPECT_NEAR(wait.behind(9, now + seconds(60)).count(), 60, 1e-9) << "nothing is admitted";
}

// A step takes a second. A request takes 11 of them: one for its prompt and first token.
class Overload : public testing::Test {
 protected:
  Overload() {
    EngineOptions options;
    options.context = 64;
    options.max_sequences = 1;
    options.max_step_tokens = 32;
    options.max_queue = 20;
    options.clock = [this] { return now_; };
    fake_ = std::make_unique<FakeEngine>(options);
  }

  static EngineRequest request(int32_t tenant = 0) {
    EngineRequest request = request_of(prompt_of(20), 11);
    request.tenant.id = tenant;
    return request;
  }

  // Submits a request that may wait for this time.
  absl::Status submit_waiting(milliseconds most, int32_t tenant = 0) {
    EngineRequest made = request(tenant);
    made.start_by = now_ + most;
    return submit(std::move(made));
  }

  absl::Status submit(EngineRequest request) {
    request.sinks = {std::make_shared<RecordingSink>()};
    sinks_.push_back(std::static_pointer_cast<RecordingSink>(request.sinks.front()));
    return fake_->engine->submit(std::move(request)).status();
  }

  void step(int steps) {
    for (int i = 0; i < steps; ++i) {
      now_ += seconds(1);
      fake_->engine->step();
    }
  }

  steady_clock::time_point now_{seconds(1000)};
  std::unique_ptr<FakeEngine> fake_;
  std::vector<std::shared_ptr<RecordingSink>> sinks_;
};

TEST_F(Overload, RefusesARequestThatWouldWaitTooLong) {
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(submit(request()).ok());
  }
  step(80);  // the requests that wait: 20 less the 8 that began
  EXPECT_TRUE(submit_waiting(seconds(150)).ok());
  const absl::Status refused = submit_waiting(seconds(60));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("this one may for 60.0 s"));
  ASSERT_TRUE(retry_after_of(refused).has_value());
  EXPECT_GT(*retry_after_of(refused), seconds(100)) << "14 requests of 11 s, by the last 20";
  EXPECT_LT(*retry_after_of(refused), seconds(160));
  EngineRequest overdue = request();
  overdue.deadline = now_ + seconds(60);
  EXPECT_EQ(submit(overdue).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(Overload, EndsARequestThatWaitedForItsQueueTimeout) {
  ASSERT_TRUE(submit(request()).ok());
  step(1);
  ASSERT_TRUE(submit_waiting(seconds(5)).ok()) << "no wait is known yet";
  step(4);
  EXPECT_FALSE(sinks_[1]->finish().has_value());
  step(1);
  ASSERT_TRUE(sinks_[1]->finish().has_value());
  EXPECT_EQ(sinks_[1]->finish()->reason, FinishReason::cancelled);
  EXPECT_EQ(sinks_[1]->finish()->status.code(), absl::StatusCode::kResourceExhausted);
  step(20);
  EXPECT_EQ(sinks_[0]->finish()->reason, FinishReason::length);
}

TEST_F(Overload, RemembersTheWaitOfARequestThatGaveUpUntilAPlaceIsFree) {
  const auto hasty = [this](int32_t tenant) { return submit_waiting(seconds(5), tenant); };
  EngineRequest holder = request();
  holder.max_tokens = 40;
  ASSERT_TRUE(submit(holder).ok());
  step(1);
  ASSERT_TRUE(hasty(0).ok());
  ASSERT_TRUE(hasty(0).ok());
  step(8);
  ASSERT_TRUE(sinks_[2]->finish().has_value()) << "none waits now";
  EXPECT_TRUE(hasty(0).ok()) << "one may wait for the place";
  const absl::Status refused = hasty(0);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("a request now waits for 8.0 s"));
  EXPECT_EQ(retry_after_of(refused), seconds(8));
  EXPECT_TRUE(hasty(1).ok());
  EXPECT_TRUE(hasty(1).ok()) << "no request of this tenant gave up";

  step(50);
  EXPECT_EQ(sinks_[0]->finish()->reason, FinishReason::length);
  now_ += seconds(1000);
  EXPECT_TRUE(hasty(0).ok());
  EXPECT_TRUE(hasty(0).ok()) << "the place is free, and idle time is no wait";
}

TEST_F(Overload, RemembersNoWaitThatEndedWhileAPlaceWasFree) {
  ASSERT_TRUE(submit_waiting(milliseconds(500)).ok());
  step(1);
  ASSERT_EQ(sinks_[0]->finish()->reason, FinishReason::cancelled);
  now_ += seconds(1000);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(submit_waiting(seconds(5)).ok()) << i;
  }
}

TEST_F(Overload, AQueueTimeoutIsOverWhenTheRequestBegan) {
  ASSERT_TRUE(submit_waiting(seconds(5)).ok());
  step(20);
  EXPECT_EQ(sinks_[0]->finish()->reason, FinishReason::length);
}

TEST_F(Overload, ATenantThatFloodsTheQueueLeavesHalfOfItToOthers) {
  int accepted = 0;
  for (int i = 0; i < 40; ++i) {
    accepted += submit(request(1)).ok() ? 1 : 0;
  }
  EXPECT_EQ(accepted, 10);
  const absl::Status refused = submit(request(1));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("for this tenant"));
  EXPECT_TRUE(retry_after_of(refused).has_value());
  int of_other = 0;
  for (int i = 0; i < 40; ++i) {
    of_other += submit(request(2)).ok() ? 1 : 0;
  }
  EXPECT_EQ(of_other, 5);
  EXPECT_TRUE(submit(request(3)).ok());
}

TEST_F(Overload, WithoutTenantsOneClientMayFillTheQueue) {
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(submit(request()).ok());
  }
  const absl::Status refused = submit(request());
  EXPECT_THAT(std::string(refused.message()), HasSubstr("20 requests wait, 20 at most"));
  EXPECT_EQ(retry_after_of(refused), milliseconds(1000)) << "the least time, as none was admitted";
}

}  // namespace
}  // namespace tessera
