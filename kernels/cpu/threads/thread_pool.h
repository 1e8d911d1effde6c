#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "kernels/backend.h"

namespace tessera {

// A fixed set of threads, pinned to cores, that share one loop at a time. The caller is worker 0,
// so a pool of one thread starts none. parallel_for allocates nothing and may not be nested. Only
// one thread at a time may call it.
//
// Workers spin for a moment after a loop, because the ops of a step follow each other within
// microseconds. Then they sleep, so an idle pool takes no CPU time. A loop never waits for a worker
// that has not taken part in it.
//
// If there are enough cores for all workers, each is pinned to a core of the affinity mask, except
// the first core. Otherwise the system places the threads, and no thread spins.
class ThreadPool {
 public:
  // threads: 0 means one for each core that this process may use.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Counts the beginnings and the ends of loops: odd while one runs. Other threads learn from it
  // whether the pool computes.
  const std::atomic<uint64_t>& loops() const;

  // Pins the calling thread to the core that the workers leave free. For a thread that does little
  // but call parallel_for, such as the engine thread. No effect if the workers are not pinned.
  void pin_caller();

  // Calls body(begin, end, worker) for disjoint ranges that cover [0, items), each at most `grain`
  // long. Returns when all are done. Ranges begin in ascending order, so a range may wait for an
  // earlier one. The worker of a range is not determined, so results must not depend on it.
  // Requires: grain > 0.
  template <class Body>
  void parallel_for(int64_t items, int64_t grain, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run({items, grain,
         [](void* context, int64_t begin, int64_t end, int worker) {
           (*static_cast<Plain*>(context))(begin, end, worker);
         },
         const_cast<void*>(static_cast<const void*>(&body))});
  }

  Stream stream() { return {this}; }
  static ThreadPool& of(Stream stream) { return *static_cast<ThreadPool*>(stream.handle); }

 private:
  struct Loop {
    int64_t items = 0;
    int64_t grain = 1;
    void (*body)(void* context, int64_t begin, int64_t end, int worker) = nullptr;
    void* context = nullptr;
  };
  void run(const Loop& loop);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
