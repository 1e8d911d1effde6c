#pragma once

#include <atomic>
#include <cstdint>
#include <ctime>

namespace tessera {

// The engine's part of the machine, as PacedWork sees it.
struct EngineLoad {
  const std::atomic<uint64_t>* loops = nullptr;  // ThreadPool::loops(); null: nothing is paced
  int threads = 1;                               // of the ThreadPool
};

// Paces the calling thread while this object exists. While the engine computes on the CPU, all
// paced threads together run for a sixteenth of the engine's cores, in bursts shorter than a step.
// If more than 4 requests wait for the work, the share grows with their number. While the engine
// computes nothing, the threads run unhindered.
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

  // waiting: requests that wait for this kind of work; null: few. The targets of `engine`
  // and `waiting` must outlive this.
  // Requires: the thread has no other PacedWork. Where the system grants no timer, the thread is
  // not paced; the log says so.
  explicit PacedWork(const EngineLoad& engine, const std::atomic<int64_t>* waiting = nullptr);
  ~PacedWork();
  PacedWork(const PacedWork&) = delete;
  PacedWork& operator=(const PacedWork&) = delete;
};

}  // namespace tessera
