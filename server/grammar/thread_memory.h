#pragma once

#include <cstdint>

namespace tessera {

// Counts the memory that `operator new` gives to this thread and takes from it, while one exists.
// A library that allocates at its own will is measured so. This replaces the global operators of
// the program. One exists on a thread at a time.
class ThreadMemory {
 public:
  ThreadMemory();
  ~ThreadMemory();
  ThreadMemory(const ThreadMemory&) = delete;
  ThreadMemory& operator=(const ThreadMemory&) = delete;

  // Returns: the bytes that the thread has now, since the beginning, and the most that it had. 0 on
  // a thread that is not counted.
  static int64_t bytes();
  static int64_t most_bytes();
};

}  // namespace tessera
