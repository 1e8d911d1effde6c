#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace tessera {

// SIGTERM and SIGINT, received by a dedicated thread. Threads that block no signals pass them on to
// it. Until the first call of wait() a signal ends the process at once, because there is nothing to
// finish. SIGHUP asks to read keys and certificates again. SIGUSR1 and SIGUSR2 are ignored. At most
// one object at a time.
class StopSignals {
 public:
  // Blocks the signals in the calling thread and in threads that it starts later. Ignores SIGPIPE,
  // because a client that disconnects is an error of a write, and SIGHUP, SIGUSR1 and SIGUSR2.
  // Requires: no other thread was started before.
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Waits for a signal. Each signal ends one wait.
  void wait();

  // From now on signals have an effect only on wait() and wait_for(). For a rank other than the
  // leader, which ends when the leader does.
  void ignore();

  // Sets the function that SIGHUP calls, on the thread of the signals; null: none. Waits for the
  // end of a call that is running.
  void on_hangup(std::function<void()> reload);

  // As wait().
  // Returns: false if `timeout` passed first.
  bool wait_for(std::chrono::milliseconds timeout);

 private:
  void listen();

  std::mutex mutex_;  // guards the fields below
  std::condition_variable came_;
  int pending_ = 0;
  bool serving_ = false;
  bool closing_ = false;
  std::mutex reload_mutex_;  // guards reload_, and is held while it runs
  std::function<void()> reload_;
  std::thread thread_;
};

}  // namespace tessera
