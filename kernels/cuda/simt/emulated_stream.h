#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "kernels/recording.h"

namespace tessera::simt::emulation {

// The emulated device's one stream, as the host sees it. Kernels run where they are launched, or
// are noted while record() lasts; what the host may know only once it has waited, it gets then.

// What was asked of it since the program began.
struct StreamCounts {
  int64_t launches = 0;    // of kernels; a library's product is one
  int64_t recordings = 0;  // started; what is in them is not counted
  int64_t waits = 0;       // copies to the host included
};
StreamCounts counts();

// A launch. Aborts, as all here, where a recording cannot hold it.
void start(std::function<void()> kernel);
void wait();

// A part of a plan as kernels see it: where it is, and of a recording in the device's memory.
const void* mirror(const void* plan, size_t bytes);

// Memory for kernels' numbers, zero at first; `to` has them after the next wait().
void* collect(void* to, size_t bytes);

RecordOps record;

}  // namespace tessera::simt::emulation
