#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace tessera {

// SIGTERM and SIGINT as a thread of their own sees them: nothing ever happens in a handler.
// Until the first call of wait() there is nothing to finish, and a signal ends the process at once.
class StopSignals {
 public:
  // Blocks the signals in the calling thread and in those it starts later: construct this before
  // any thread. Ignores SIGPIPE: a client that goes away is an error of a write.
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Waits for a signal that has not been waited for.
  void wait();

  // From now on signals change nothing, unless somebody waits for them: for a rank that ends when
  // the one that leads does.
  void ignore();

  // As wait(). False: `timeout` passed before one came.
  bool wait_for(std::chrono::milliseconds timeout);

 private:
  void listen();

  std::mutex mutex_;  // guards what follows
  std::condition_variable came_;
  int pending_ = 0;
  bool serving_ = false;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace tessera
