#pragma once

#include <cstdint>
#include <ctime>

namespace tessera {

// Returns: the nanoseconds of CPU time that the calling thread has used. Allowed in a signal
// handler.
inline int64_t thread_nanoseconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace tessera
