#include "server/base/paced_work.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "server/base/work_pool.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

// A burst has 0.25 ms of CPU time, so this has 80 of them.
constexpr std::chrono::milliseconds kWork = 20ms;
constexpr int64_t kManyPauses = 20;
constexpr int kCores = 2;

std::chrono::nanoseconds cpu_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// Uses CPU time.
// Returns: how often this thread gave its core up by itself meanwhile: its pauses.
int64_t pauses_of_work() {
  rusage before{}, after{};
  getrusage(RUSAGE_THREAD, &before);
  for (const auto end = cpu_time() + kWork; cpu_time() < end;) {
  }
  getrusage(RUSAGE_THREAD, &after);
  return after.ru_nvcsw - before.ru_nvcsw;
}

// Of three tries, because a thread that waits for a core pauses less.
int64_t most_pauses() {
  return std::max({pauses_of_work(), pauses_of_work(), pauses_of_work()});
}

TEST(PacedWork, PausesWhileTheEngineIsInALoop) {
  const std::atomic<uint64_t> loops = 1;
  const PacedWork paced({&loops, kCores});
  EXPECT_GE(most_pauses(), kManyPauses);
}

TEST(PacedWork, PausesWhileTheEngineRunsLoops) {
  std::atomic<uint64_t> loops = 0;
  std::atomic<bool> ends = false;
  std::thread engine([&] {
    while (!ends) {
      loops += 2;
      std::this_thread::yield();  // to the paced thread, where they share a core
    }
  });
  {
    const PacedWork paced({&loops, kCores});
    EXPECT_GE(most_pauses(), kManyPauses);
  }
  ends = true;
  engine.join();
}

TEST(PacedWork, RunsUnhinderedWhileTheEngineComputesNothing) {
  const std::atomic<uint64_t> loops = 6;
  const PacedWork paced({&loops, kCores});
  EXPECT_LT(pauses_of_work(), kManyPauses);
}

TEST(PacedWork, EndsWithTheObject) {
  const std::atomic<uint64_t> loops = 1;
  { const PacedWork paced({&loops, kCores}); }
  EXPECT_LT(pauses_of_work(), kManyPauses);
  const PacedWork never({});
  EXPECT_LT(pauses_of_work(), kManyPauses);
}

// The system may give a thread less than its share, but never more.
TEST(PacedWork, AllThreadsTogetherGetAShareOfOneCore) {
  const std::atomic<uint64_t> loops = 1;
  const auto begin = steady_clock::now();
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      const PacedWork paced({&loops, kCores});
      pauses_of_work();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_GT(steady_clock::now() - begin, 2 * 3 * kWork) << "more than half of a core";
}

TEST(PacedWork, IsNotPacedWhereManyRequestsWaitOrTheEngineHasManyCores) {
  const std::atomic<uint64_t> loops = 1;
  const std::atomic<int64_t> waiting = 32;
  {
    const PacedWork paced({&loops, kCores}, &waiting);
    EXPECT_LT(pauses_of_work(), kManyPauses);
  }
  const PacedWork paced({&loops, 16});
  EXPECT_LT(pauses_of_work(), kManyPauses);
}

TEST(PacedWork, DoesNotInterruptASystemCall) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const std::atomic<uint64_t> loops = 1;
  std::thread writer([&] {
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(write(ends[1], "x", 1), 1);
  });
  {
    const PacedWork paced({&loops, kCores});
    char read_byte = 0;
    EXPECT_EQ(read(ends[0], &read_byte, 1), 1) << "errno " << errno;
  }
  writer.join();
  close(ends[0]);
  close(ends[1]);
}

TEST(WorkPool, PacesLongJobsAlone) {
  const std::atomic<uint64_t> loops = 1;
  WorkPool pool({.threads = 2, .max_jobs = 4, .long_bytes = 100}, {&loops, kCores});
  const auto pauses = [&](std::size_t bytes) {
    std::promise<int64_t> counted;
    EXPECT_TRUE(pool.submit("a", bytes, [&] { counted.set_value(pauses_of_work()); }));
    return counted.get_future().get();
  };
  EXPECT_GE(pauses(101), kManyPauses);
  EXPECT_LT(pauses(100), kManyPauses);
}

}  // namespace
}  // namespace tessera
