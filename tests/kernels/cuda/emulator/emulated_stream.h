#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "kernels/recording.h"

namespace tessera::simt::emulation {

// The one stream of the emulated device, for the host. Kernels run at launch, or are recorded
// during record(). As on a GPU, the host receives collected numbers only when it waits.

// Number of calls since the program started.
struct StreamCounts {
  int64_t launches = 0;    // kernels; a library's product counts as one
  int64_t recordings = 0;  // recordings started; their kernels are not counted
  int64_t waits = 0;       // including copies to the host
};
StreamCounts counts();

// Launches a kernel, or records it during record().
void start(std::function<void()> kernel);
// Errors: wait() and collect() abort during record().
void wait();

// Returns: address of a part of a plan for kernels: `plan` itself, or its place in device memory
// during record().
// Errors: aborts during record() if the part is outside the recording's plan.
const void* mirror(const void* plan, size_t bytes);

// Returns: zeroed memory for numbers that kernels write; the next wait() copies them to `to`.
void* collect(void* to, size_t bytes);

RecordOps record;

}  // namespace tessera::simt::emulation
