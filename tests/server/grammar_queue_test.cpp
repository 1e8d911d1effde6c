#include "server/grammar/grammar_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tessera {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;

bool add(GrammarQueue& queue, const std::string& client, const std::string& text,
         bool tenant = true) {
  GrammarQueue::Waiter waiter{[](const auto&) {}, GrammarQueue::Clock::time_point(1s)};
  return queue.add({.name = client, .tenant = tenant}, text,
                   {.kind = GrammarSpec::Kind::regex, .text = text}, waiter);
}

TEST(GrammarQueue, LetsClientsTakeTurnsByTheTimeOfTheirGrammars) {
  GrammarQueue queue(1, 1 << 20);
  for (const char* const text : {"1", "2", "3"}) {
    add(queue, "heavy", text);
  }
  GrammarQueue::Job* job = queue.begin();
  for (const char* const text : {"a", "b", "c", "d"}) {
    add(queue, "light", text);
  }
  std::vector<std::string> order;
  for (; job != nullptr; job = queue.begin()) {
    order.push_back(job->digest);
    queue.end(job, job->client == "heavy" ? 3ms : 1ms);
  }
  EXPECT_THAT(order, ElementsAre("1", "a", "b", "c", "2", "d", "3"));
}

TEST(GrammarQueue, LeavesAClientHalfOfTheThreadsThatOthersLeave) {
  GrammarQueue queue(4, 1 << 20);
  for (int i = 0; i < 9; ++i) {
    add(queue, "a", std::to_string(i));
  }
  std::vector<GrammarQueue::Job*> running{queue.begin(), queue.begin()};
  EXPECT_EQ(queue.begin(), nullptr) << "two of four";
  add(queue, "b", "x");
  add(queue, "b", "y");
  EXPECT_EQ(queue.begin()->client, "b");
  EXPECT_EQ(queue.begin(), nullptr) << "one of two";
  add(queue, "c", "z");
  EXPECT_EQ(queue.begin()->client, "c");
  queue.end(running.front(), 1ms);
  EXPECT_EQ(queue.begin(), nullptr) << "one of two: others have the rest";
}

TEST(GrammarQueue, LeavesAClientHalfOfTheBytesThatOthersLeave) {
  GrammarQueue queue(1, 64 << 10);
  const std::string text(10 << 10, 'x');
  EXPECT_TRUE(add(queue, "heavy", text + "1"));
  EXPECT_TRUE(add(queue, "heavy", text + "2"));
  EXPECT_FALSE(add(queue, "heavy", text + "3"));
  EXPECT_TRUE(add(queue, "light", text + "1")) << "a job of its own, not behind that of another";
  const int64_t before = queue.bytes();
  EXPECT_TRUE(add(queue, "light", text + "1")) << "the same one again";
  EXPECT_LT(queue.bytes(), before + 2048);
}

TEST(GrammarQueue, TakesRequestsWhoseTimeHasPassedAndTheirBytes) {
  GrammarQueue queue(1, 1 << 20);
  add(queue, "a", "running");
  add(queue, "a", "waiting");
  GrammarQueue::Job* const job = queue.begin();
  const GrammarQueue::Clock::time_point never(1h);
  EXPECT_EQ(queue.first_deadline(never), GrammarQueue::Clock::time_point(1s));
  EXPECT_TRUE(queue.take_late(GrammarQueue::Clock::time_point(999ms)).empty());
  const auto late = queue.take_late(GrammarQueue::Clock::time_point(1s));
  ASSERT_EQ(late.size(), 2U);
  EXPECT_TRUE(late[0].running);
  EXPECT_FALSE(late[1].running);
  EXPECT_EQ(queue.first_deadline(never), never);
  EXPECT_TRUE(queue.end(job, 1ms).empty());
  EXPECT_EQ(queue.begin(), nullptr);
  EXPECT_EQ(queue.bytes(), 0);
  EXPECT_EQ(queue.requests(), 0);
}

TEST(GrammarQueue, CountsATenantsRequestsAsFew) {
  GrammarQueue queue(1, 1 << 20);
  for (int i = 0; i < 50; ++i) {
    add(queue, "of a tenant file", std::to_string(i));
  }
  EXPECT_EQ(queue.requests(), GrammarQueue::kFewRequests);
  for (int i = 0; i < 50; ++i) {
    add(queue, "without one", std::to_string(i), /*tenant=*/false);
  }
  EXPECT_EQ(queue.requests(), GrammarQueue::kFewRequests + 50);
}

}  // namespace
}  // namespace tessera
