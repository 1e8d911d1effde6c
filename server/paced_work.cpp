#include "server/paced_work.h"

#include <signal.h>
#include <spdlog/spdlog.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "kernels/check.h"

namespace tessera {
namespace {

constexpr int64_t kBurst = 250'000;  // nanoseconds of CPU time between two pauses
constexpr int64_t kPauses = 3;       // pauses take this many times as long as bursts

std::atomic<int> paced_threads{0};

// State of a thread, for the handler.
struct Pace {
  const std::atomic<uint64_t>* loops = nullptr;  // null: not paced
  timer_t timer{};
  uint64_t seen = 0;    // loops at the last signal
  int64_t resumed = 0;  // CPU time at the end of the last pause
};
thread_local constinit Pace pace;

int64_t cpu_nanoseconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// Ends with the next signal after one burst.
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
  if (computes && cpu_nanoseconds() - pace.resumed >= kBurst / 2) {
    const int64_t others = std::max(paced_threads.load(std::memory_order_relaxed), 1) - 1;
    const int64_t pause = kBurst * (kPauses + (kPauses + 1) * others);
    const timespec time{.tv_sec = 0, .tv_nsec = std::min(pause, PacedWork::kMaxPause)};
    nanosleep(&time, nullptr);
    pace.resumed = cpu_nanoseconds();
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

PacedWork::PacedWork(const std::atomic<uint64_t>* loops) {
  TESSERA_CHECK(pace.loops == nullptr, "a thread is paced once");
  if (loops == nullptr) {
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
  paced_ = true;
  paced_threads.fetch_add(1, std::memory_order_relaxed);
  pace.seen = loops->load(std::memory_order_relaxed);
  pace.resumed = cpu_nanoseconds();
  pace.loops = loops;
  set_timer();
}

PacedWork::~PacedWork() {
  if (!paced_) {
    return;
  }
  pace.loops = nullptr;  // a signal that is still to come does nothing
  timer_delete(pace.timer);
  paced_threads.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace tessera
