#pragma once

#include <functional>
#include <mutex>
#include <thread>

namespace tessera {

// The thread of an engine, started at most once. Thread-safe.
class EngineThread {
 public:
  // Requires: neither started nor stopped before.
  void start(std::function<void()> loop);
  // Waits for the end of the loop, if it was started.
  // Requires: the loop ends soon; not called from the loop.
  // Returns: true in the first call if no thread was started.
  bool stop();

 private:
  std::mutex mutex_;
  std::thread thread_;
  bool stopped_ = false;
};

}  // namespace tessera
