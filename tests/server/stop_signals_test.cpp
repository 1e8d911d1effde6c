#include "server/start/stop_signals.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

namespace tessera {
namespace {

// Waits for a signal that Linux delivers to a thread that blocks none, as libraries start them.
[[noreturn]] void wait_beside_an_open_thread(int signal) {
  alarm(30);  // seconds, after which the test fails
  StopSignals signals;
  signals.on_hangup([] { std::_Exit(8); });
  signals.ignore();  // before wait() a signal would end the process at once
  std::atomic<bool> open = false;
  std::thread thread([&open] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_UNBLOCK, &all, nullptr);
    open = true;
    while (true) {
      pause();
    }
  });
  while (!open) {
    std::this_thread::yield();
  }
  pthread_kill(thread.native_handle(), signal);
  signals.wait();
  std::_Exit(7);
}

// The driver of CUDA starts such threads. A server on an H100 ended without its drain.
TEST(StopSignalsDeathTest, ReachWaitPastThreadsThatDoNotBlockThem) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(wait_beside_an_open_thread(SIGTERM), testing::ExitedWithCode(7), "");
  EXPECT_EXIT(wait_beside_an_open_thread(SIGINT), testing::ExitedWithCode(7), "");
  EXPECT_EXIT(wait_beside_an_open_thread(SIGHUP), testing::ExitedWithCode(8), "");
}

}  // namespace
}  // namespace tessera
