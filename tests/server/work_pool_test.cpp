#include "server/base/work_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/base/byte_budget.h"
#include "server/base/thread_time.h"
#include "server/generation/answer_bytes.h"
#include "server/generation/token_queue.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;

// A pool of one thread for short jobs and one for all, which the test can hold.
class HeldPool {
 public:
  HeldPool() {
    // The long job first: only one thread takes it, and the short job then gets the other.
    for (const std::size_t bytes : {kLong, std::size_t{1}}) {
      std::promise<void> held;
      pool.submit("holder", bytes, [this, &held] {
        held.set_value();
        released_.wait();
      });
      held.get_future().wait();
    }
  }
  ~HeldPool() {
    if (!let_go_) {
      release();
    }
  }
  void release() {
    let_go_ = true;
    release_.set_value();
  }
  void note(const std::string& client, std::size_t bytes) {
    pool.submit(client, bytes, [this, client] {
      const std::lock_guard lock(mutex_);
      order_.push_back(client);
    });
  }

  std::vector<std::string> noted() {
    const std::lock_guard lock(mutex_);
    return order_;
  }

  static constexpr std::size_t kLong = 1000;

 private:
  std::promise<void> release_;
  std::shared_future<void> released_ = release_.get_future().share();
  bool let_go_ = false;
  std::mutex mutex_;
  std::vector<std::string> order_;

 public:
  WorkPool pool{{.threads = 2, .max_jobs = 40, .long_bytes = 100}};
};

TEST(WorkPool, RunsEveryJobEvenAtItsEnd) {
  std::atomic<int> runs = 0;
  {
    WorkPool pool({});
    for (int i = 0; i < 1000; ++i) {
      ASSERT_TRUE(pool.submit("a", i % 2 == 0 ? 1 : 1 << 20, [&] { ++runs; }));
    }
  }
  EXPECT_EQ(runs, 1000);
}

TEST(WorkPool, ClientsTakeTurns) {
  HeldPool held;
  for (int i = 0; i < 20; ++i) {
    held.note("many", 50);
  }
  held.note("few", 50);
  held.release();
  for (int i = 0; i < 10'000 && held.noted().size() < 21; ++i) {
    std::this_thread::sleep_for(1ms);
  }
  const std::vector<std::string> order = held.noted();
  ASSERT_EQ(order.size(), 21U);
  EXPECT_LT(std::find(order.begin(), order.end(), "few") - order.begin(), 4)
      << "the 20 jobs of the other client did not come first";
}

TEST(WorkPool, LongJobsLeaveAThreadToShortOnes) {
  WorkPool pool({.threads = 2, .max_jobs = 40, .long_bytes = 100});
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  for (int i = 0; i < 5; ++i) {
    pool.submit("a", 1000, [released] { released.wait(); });
  }
  std::promise<void> done;
  pool.submit("a", 10, [&] { done.set_value(); });
  EXPECT_EQ(done.get_future().wait_for(10s), std::future_status::ready);
  release.set_value();
}

void use_cpu(std::chrono::nanoseconds time) {
  const int64_t end = thread_nanoseconds() + time.count();
  while (thread_nanoseconds() < end) {
  }
}

TEST(WorkPool, ManyShortJobsOfAClientAreLongWork) {
  const std::atomic<uint64_t> loops = 1;  // the engine computes
  WorkPool pool({.threads = 2, .max_jobs = 40, .long_bytes = 100}, {&loops, 1});
  std::promise<void> used;
  pool.submit("many", 10, [&] {
    use_cpu(100ms);
    used.set_value();
  });
  used.get_future().wait();
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  std::atomic<int> held = 0;
  const auto hold = [&held, released] {
    ++held;
    released.wait();
  };
  for (int i = 0; i < 3; ++i) {
    pool.submit("many", 10, hold);
  }
  std::promise<void> done;
  pool.submit("few", 10, [&] { done.set_value(); });
  EXPECT_EQ(done.get_future().wait_for(10s), std::future_status::ready)
      << "the client that sent many has one thread alone";
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(held, 1);
  std::this_thread::sleep_for(3s);  // what it used has leaked
  pool.submit("many", 10, hold);
  for (int i = 0; i < 10'000 && held < 2; ++i) {
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(held, 2) << "its jobs are short again";
  release.set_value();
}

TEST(WorkPool, ManyShortJobsArePacedWhileTheEngineComputes) {
  const std::atomic<uint64_t> loops = 1;
  WorkPool pool({.threads = 2, .max_jobs = 400, .long_bytes = 100}, {&loops, 1});
  std::atomic<int> runs = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 100; ++i) {
    pool.submit("many", 10, [&] {
      use_cpu(1ms);
      ++runs;
    });
  }
  while (runs < 100) {
    std::this_thread::sleep_for(1ms);
  }
  // 50 ms are free. A sixteenth of a core takes 800 ms for the others. A busy machine takes longer.
  EXPECT_GT(std::chrono::steady_clock::now() - begin, 400ms);
}

TEST(WorkPool, RefusesMoreThanItHolds) {
  HeldPool held;
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(held.pool.submit("a", 1, [] {}));
  }
  EXPECT_FALSE(held.pool.submit("b", 1, [] { FAIL() << "a refused job runs"; }));
}

TEST(ByteBudget, GivesWhatIsLeftAndTakesItBack) {
  ByteBudget budget(100);
  auto first = budget.take(60);
  ASSERT_TRUE(first);
  EXPECT_FALSE(budget.take(41));
  auto second = budget.take(30);
  ASSERT_TRUE(second);
  EXPECT_FALSE(second->grow_to(41));
  EXPECT_TRUE(second->grow_to(40));
  EXPECT_EQ(budget.used(), 100U);
  ByteBudget::Share moved = *std::move(first);
  first.reset();
  EXPECT_EQ(budget.used(), 100U) << "a share that was moved still holds its bytes";
  moved.release();
  EXPECT_EQ(budget.used(), 40U);
  second.reset();
  EXPECT_EQ(budget.used(), 0U);
}

class CountingWaker final : public Waker {
 public:
  void wake() override { ++wakes; }
  std::atomic<int> wakes = 0;
};

TEST(TokenQueue, GivesTheOldestTokensAndTheEndAfterTheLast) {
  const auto waker = std::make_shared<CountingWaker>();
  TokenQueue queue(waker, /*wake_for_tokens=*/false);
  for (const int32_t token : {1, 2, 3}) {
    queue.on_token(token);
  }
  queue.on_finish(Finish());
  EXPECT_EQ(waker->wakes, 1);
  const TokenQueue::Events first = queue.take(2);
  ASSERT_EQ(first.tokens.size(), 2U);
  EXPECT_EQ(first.tokens[1].id, 2);
  EXPECT_TRUE(first.more);
  EXPECT_FALSE(first.finish) << "a token is left";
  const TokenQueue::Events last = queue.take(2);
  ASSERT_EQ(last.tokens.size(), 1U);
  EXPECT_EQ(last.tokens[0].id, 3);
  EXPECT_FALSE(last.more);
  EXPECT_TRUE(last.finish);
}

TEST(TokenQueue, TakesRoomForTokensThatWaitAndDropsThemWithoutIt) {
  ByteBudget budget(4 * kUnreadBytes);
  TokenQueue queue(std::make_shared<CountingWaker>(), false, StreamRoom(&budget));
  bool cancelled = false;
  queue.when_cut_off([&] { cancelled = true; });
  int32_t tokens = 0;
  for (; budget.used() == 0 && tokens < 1'000'000; ++tokens) {
    queue.on_token(tokens);
  }
  EXPECT_EQ(queue.take().tokens.size(), static_cast<std::size_t>(tokens));
  EXPECT_EQ(budget.used(), 0U) << "none waits any more";
  for (tokens = 0; !cancelled && tokens < 1'000'000; ++tokens) {
    queue.on_token(tokens);
  }
  ASSERT_TRUE(cancelled);
  EXPECT_GT(budget.used(), 2 * kUnreadBytes);
  queue.on_token(0);
  const TokenQueue::Events events = queue.take();
  EXPECT_TRUE(events.cut_off);
  EXPECT_EQ(events.tokens.size(), static_cast<std::size_t>(tokens) - 1)
      << "in order, without a gap";
  EXPECT_EQ(budget.used(), 0U);
}

}  // namespace
}  // namespace tessera
