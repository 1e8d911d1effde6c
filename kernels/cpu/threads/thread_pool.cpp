#include "kernels/cpu/threads/thread_pool.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/check.h"

namespace tessera {
namespace {

constexpr int kSpins = 64;  // pauses between two reads of the clock, about a microsecond
constexpr std::chrono::microseconds kSpinTime{100};

std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) {
        cores.push_back(core);
      }
    }
  }
  if (cores.empty()) {  // more cores than cpu_set_t can name: pin nothing
    cores.assign(std::max(1u, std::thread::hardware_concurrency()), -1);
  }
  return cores;
}

// Failure is harmless: the process may have lost a core since it was counted.
void pin(pthread_t thread, int core) {
  if (core < 0) {
    return;
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  pthread_setaffinity_np(thread, sizeof(set), &set);
}

}  // namespace

// State of a shared loop. `unclaimed` counts the ranges that no thread has claimed, `unfinished`
// those that are not done. A thread that decrements `unclaimed` owns a range of the loop that is
// current at that moment. `loop` cannot change until that range is finished. So a late worker finds
// no range, or a range of the next loop; both are correct.
struct ThreadPool::State {
  bool spins = false;
  int caller_core = -1;
  std::vector<std::thread> workers;

  Loop loop;
  int64_t ranges = 0;
  alignas(64) std::atomic<int64_t> unclaimed{0};
  alignas(64) std::atomic<int64_t> unfinished{0};
  alignas(64) std::atomic<int32_t> sleepers{0};
  std::atomic<uint32_t> alarm{0};  // changes to wake the sleepers
  std::atomic<bool> closing{false};
  alignas(64) std::atomic<uint64_t> loops{0};  // the caller's alone; see ThreadPool::loops()

  bool claim(int64_t& remaining) {
    remaining = unclaimed.load(std::memory_order_relaxed);
    while (remaining > 0) {
      if (unclaimed.compare_exchange_weak(remaining, remaining - 1, std::memory_order_acquire,
                                          std::memory_order_relaxed)) {
        return true;
      }
    }
    return false;
  }

  void take_part(int worker) {
    int64_t remaining = 0;
    while (claim(remaining)) {
      const int64_t begin = (ranges - remaining) * loop.grain;
      loop.body(loop.context, begin, std::min(begin + loop.grain, loop.items), worker);
      unfinished.fetch_sub(1, std::memory_order_release);
    }
  }

  // Returns: true if work arrived while spinning.
  bool spin_for_work() const {
    if (!spins) {
      return false;
    }
    const auto give_up = std::chrono::steady_clock::now() + kSpinTime;
    do {
      for (int i = 0; i < kSpins; ++i) {
        if (unclaimed.load(std::memory_order_relaxed) > 0) {
          return true;
        }
        _mm_pause();
      }
    } while (std::chrono::steady_clock::now() < give_up);
    return false;
  }

  void sleep() {
    const uint32_t seen = alarm.load();
    sleepers.fetch_add(1);
    // The publisher stores `unclaimed` before it reads `sleepers`. This thread does the opposite,
    // so at least one of the two sees the other's store.
    if (unclaimed.load() == 0 && !closing.load()) {
      alarm.wait(seen);
    }
    sleepers.fetch_sub(1);
  }

  void wake() {
    alarm.fetch_add(1);
    alarm.notify_all();
  }

  void work(int worker) {
    while (!closing.load(std::memory_order_relaxed)) {
      take_part(worker);
      if (!spin_for_work()) {
        sleep();
      }
    }
  }

  void wait_for_the_others() {
    for (int spin = 0; unfinished.load(std::memory_order_acquire) > 0; ++spin) {
      if (spins && spin < 16 * kSpins) {
        _mm_pause();
      } else {
        std::this_thread::yield();  // a worker was descheduled in the middle of a range
      }
    }
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  TESSERA_CHECK(threads >= 0, "a negative number of threads");
  const std::vector<int> cores = allowed_cores();
  const size_t count = threads == 0 ? cores.size() : static_cast<size_t>(threads);
  state_->spins = count <= cores.size();
  const bool pins = state_->spins && count > 1;
  state_->caller_core = pins ? cores[0] : -1;
  for (size_t worker = 1; worker < count; ++worker) {
    state_->workers.emplace_back(
        [state = state_.get(), worker] { state->work(static_cast<int>(worker)); });
    if (pins) {
      pin(state_->workers.back().native_handle(), cores[worker]);
    }
  }
}

ThreadPool::~ThreadPool() {
  state_->closing.store(true);
  state_->wake();
  for (std::thread& worker : state_->workers) {
    worker.join();
  }
}

const std::atomic<uint64_t>& ThreadPool::loops() const {
  return state_->loops;
}

int ThreadPool::threads() const {
  return static_cast<int>(state_->workers.size()) + 1;
}

void ThreadPool::pin_caller() {
  pin(pthread_self(), state_->caller_core);
}

void ThreadPool::run(const Loop& loop) {
  TESSERA_CHECK(loop.grain > 0, "parallel_for with an empty grain");
  State& state = *state_;
  const uint64_t seen = state.loops.load(std::memory_order_relaxed);
  state.loops.store(seen + 1, std::memory_order_relaxed);
  const int64_t ranges = div_ceil(loop.items, loop.grain);
  if (ranges <= 1 || state.workers.empty()) {
    for (int64_t begin = 0; begin < loop.items; begin += loop.grain) {
      loop.body(loop.context, begin, std::min(begin + loop.grain, loop.items), 0);
    }
  } else {
    state.loop = loop;
    state.ranges = ranges;
    state.unfinished.store(ranges, std::memory_order_relaxed);
    state.unclaimed.store(ranges);
    if (state.sleepers.load() > 0) {
      state.wake();
    }
    state.take_part(0);
    state.wait_for_the_others();
  }
  state.loops.store(seen + 2, std::memory_order_relaxed);
}

}  // namespace tessera
