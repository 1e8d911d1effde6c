#pragma once

#include <atomic>
#include <cstdint>
#include <ctime>

namespace tessera {

// Paces the calling thread while this object exists. While the engine computes on the CPU, all
// paced threads together run for a quarter of one core's time, in bursts shorter than a step. More
// than five threads run for somewhat more. While it computes nothing, they run unhindered.
//
// It is for work that grows with a request: a body of megabytes, or a grammar to compile. The
// system lets such a thread keep a core of the engine for several milliseconds, and steps wait.
//
// A timer interrupts the thread with the signal SIGRTMIN, and the handler sleeps. So code of
// libraries is paced too. The handler calls only functions that POSIX allows in one. Interrupted
// system calls start again. A thread may sleep while it holds a mutex, at most kMaxPause.
class PacedWork {
 public:
  static constexpr int64_t kMaxPause = 5'000'000;  // nanoseconds

  // loops: ThreadPool::loops() of the engine; must outlive this. Null: the thread is not paced.
  // Requires: the thread has no other PacedWork. Where the system grants no timer, the thread is
  // not paced; the log says so.
  explicit PacedWork(const std::atomic<uint64_t>* loops);
  ~PacedWork();
  PacedWork(const PacedWork&) = delete;
  PacedWork& operator=(const PacedWork&) = delete;

 private:
  bool paced_ = false;
};

}  // namespace tessera
