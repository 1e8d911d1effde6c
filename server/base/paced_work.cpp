#include "server/base/paced_work.h"

#include <signal.h>
#include <spdlog/spdlog.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "base/check.h"
#include "server/base/thread_time.h"

namespace tessera {
namespace {

constexpr int64_t kBurst = 250'000;  // nanoseconds of CPU time between two pauses
constexpr int64_t kPart = 16;        // one of so many parts of the engine's cores is for paced work
constexpr int64_t kFewRequests = 4;  // that wait; the share grows with more

std::atomic<int> paced_threads{0};

// State of a thread, for the handler.
struct Pace {
  const std::atomic<uint64_t>* loops = nullptr;   // null: not paced
  const std::atomic<int64_t>* waiting = nullptr;  // may be null
  int64_t cores = 1;                              // of the engine
  timer_t timer{};
  uint64_t seen = 0;    // loops at the last signal
  int64_t resumed = 0;  // CPU time at the end of the last pause
};
thread_local constinit Pace pace;

// Returns: the nanoseconds to sleep after a burst; 0 or less: none.
int64_t pause_time() {
  const int64_t waiting =
      pace.waiting == nullptr ? 0 : pace.waiting->load(std::memory_order_relaxed);
  const int64_t shares = pace.cores * std::max(waiting, kFewRequests);
  const int64_t threads = paced_threads.load(std::memory_order_relaxed);
  const int64_t whole = kBurst * kPart * kFewRequests * threads / shares;
  return std::min(whole - kBurst, PacedWork::kMaxPause);
}

// The next signal comes after one burst.
void set_timer() {
  const itimerspec next{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_nsec = kBurst}};
  timer_settime(pace.timer, 0, &next, nullptr);
}

// The handler. A thread that waited for a core has used less than a burst, so it goes on.
void pause_if_due(int /*signal*/) {
  if (pace.loops == nullptr) {
    return;
  }
  const int error = errno;
  const uint64_t loops = pace.loops->load(std::memory_order_relaxed);
  const bool computes = loops % 2 == 1 || loops != pace.seen;
  pace.seen = loops;
  if (computes && thread_nanoseconds() - pace.resumed >= kBurst / 2) {
    if (const int64_t pause = pause_time(); pause > 0) {
      const timespec time{.tv_sec = 0, .tv_nsec = pause};
      nanosleep(&time, nullptr);
    }
    pace.resumed = thread_nanoseconds();
  }
  set_timer();
  errno = error;
}

void install_handler() {
  struct sigaction action {};
  action.sa_handler = pause_if_due;
  action.sa_flags = SA_RESTART;
  TESSERA_CHECK(sigaction(SIGRTMIN, &action, nullptr) == 0, "SIGRTMIN can be handled");
}

}  // namespace

PacedWork::PacedWork(const EngineLoad& engine, const std::atomic<int64_t>* waiting) {
  TESSERA_CHECK(pace.loops == nullptr, "a thread is paced once");
  if (engine.loops == nullptr) {
    return;
  }
  static std::once_flag installed;
  std::call_once(installed, install_handler);
  sigevent event{};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = SIGRTMIN;
  event._sigev_un._tid = gettid();
  if (timer_create(CLOCK_MONOTONIC, &event, &pace.timer) != 0) {
    spdlog::warn("long work is not paced: no timer: {}", std::strerror(errno));
    return;
  }
  paced_threads.fetch_add(1, std::memory_order_relaxed);
  pace.seen = engine.loops->load(std::memory_order_relaxed);
  pace.resumed = thread_nanoseconds();
  pace.waiting = waiting;
  pace.cores = engine.threads;
  pace.loops = engine.loops;
  set_timer();
}

PacedWork::~PacedWork() {
  if (pace.loops == nullptr) {
    return;
  }
  pace.loops = nullptr;  // a signal that is still to come does nothing
  timer_delete(pace.timer);
  paced_threads.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace tessera
