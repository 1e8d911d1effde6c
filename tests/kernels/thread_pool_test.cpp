#include "kernels/cpu/threads/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <thread>
#include <vector>

namespace tessera {
namespace {

int allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof(set), &set);
  return CPU_COUNT(&set);
}

class ThreadPoolOf : public testing::TestWithParam<int> {};

TEST_P(ThreadPoolOf, CoversEachItemExactlyOnce) {
  ThreadPool pool(GetParam());
  for (const int64_t items : {0, 1, 2, 3, 17, 64, 1000}) {
    for (const int64_t grain : {1, 2, 7, 64, 5000}) {
      SCOPED_TRACE(testing::Message() << items << " items by " << grain);
      std::vector<std::atomic<int>> visits(static_cast<size_t>(items));
      std::atomic<bool> fits = true;
      pool.parallel_for(items, grain, [&](int64_t begin, int64_t end, int worker) {
        if (begin >= end || end - begin > grain || worker < 0 || worker >= pool.threads()) {
          fits = false;
        }
        for (int64_t item = begin; item < end; ++item) {
          ++visits[static_cast<size_t>(item)];
        }
      });
      EXPECT_TRUE(fits);
      for (const std::atomic<int>& visit : visits) {
        ASSERT_EQ(visit, 1);
      }
    }
  }
}

// Plain memory: loops are ordered one after the other, else a sanitizer reports a race.
TEST_P(ThreadPoolOf, LetsEachLoopSeeWhatTheOneBeforeWrote) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> counts(64);
  constexpr int kLoops = 3000;
  for (int loop = 0; loop < kLoops; ++loop) {
    pool.parallel_for(64, 5, [&](int64_t begin, int64_t end, int) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t mirror = counts[static_cast<size_t>(item)];
        counts[static_cast<size_t>(item)] = mirror + 1;
      }
    });
  }
  for (const int64_t count : counts) {
    ASSERT_EQ(count, kLoops);
  }
}

TEST_P(ThreadPoolOf, WakesAfterSleeping) {
  ThreadPool pool(GetParam());
  for (int loop = 0; loop < 20; ++loop) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int64_t> sum = 0;
    pool.parallel_for(100, 1, [&](int64_t begin, int64_t, int) { sum += begin; });
    ASSERT_EQ(sum, 4950);
  }
}

TEST_P(ThreadPoolOf, ClosesWithoutWork) {
  for (int round = 0; round < 50; ++round) {
    const ThreadPool pool(GetParam());
    ASSERT_EQ(pool.threads(), GetParam());
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolOf, testing::Values(1, 2, 3, 8));

TEST(ThreadPool, TakesOneThreadForEachCoreItMayUse) {
  EXPECT_EQ(ThreadPool(0).threads(), allowed_cores());
}

TEST(ThreadPool, LeavesItsCallerWhereItWas) {
  const int before = allowed_cores();
  ThreadPool pool(0);
  pool.parallel_for(10, 1, [](int64_t, int64_t, int) {});
  EXPECT_EQ(allowed_cores(), before);
}

TEST(ThreadPool, PinsACallerThatAsksForIt) {
  const int cores = allowed_cores();
  std::thread([cores] {
    ThreadPool pool(0);
    pool.pin_caller();
    EXPECT_EQ(allowed_cores(), 1);
    ThreadPool crowded(cores + 1);
    crowded.pin_caller();  // more threads than cores: no thread is pinned
    EXPECT_EQ(allowed_cores(), 1);
  }).join();
}

TEST_P(ThreadPoolOf, CountsTheEndsOfLoops) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.loops(), 0U);
  std::atomic<bool> odd = true;
  for (const int64_t items : {0, 1, 100}) {
    pool.parallel_for(items, 1, [&](int64_t, int64_t, int) { odd = odd && pool.loops() % 2 == 1; });
  }
  EXPECT_TRUE(odd) << "a loop ran at an even count";
  EXPECT_EQ(pool.loops(), 6U);
}

TEST(ThreadPool, TakesNoTimeWhenIdle) {
  ThreadPool pool(0);
  pool.parallel_for(100, 1, [](int64_t, int64_t, int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const std::clock_t before = std::clock();  // of all threads of the process
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const double seconds = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  EXPECT_LT(seconds, 0.03);
}

}  // namespace
}  // namespace tessera
