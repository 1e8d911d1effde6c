#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "kernels/cuda/stream/launch_shape.h"
#include "kernels/recording.h"

namespace tessera::simt::emulation {

// The stream of the emulated device, for the host. Two files implement it: emulated_stream.cpp,
// which needs nothing of CUDA, and stand_in/real_stream.cpp over the backend's own CudaStream.
// In the first, kernels are recorded during record(), else queued. They run when the host waits,
// the latest time that CUDA allows. So a host that reads
// results early, or changes memory that a kernel is going to read, gets wrong numbers.

// Number of calls since the program started.
struct StreamCounts {
  int64_t launches = 0;    // kernels; a library's product counts as one
  int64_t recordings = 0;  // recordings started; their kernels are not counted
  int64_t waits = 0;       // including copies to the host
};
StreamCounts counts();

// Returns: limits of the emulated device, which are an H100's; in real_stream.cpp the stream's own.
const DeviceLimits& limits(Stream stream);

// Queues a kernel, or records it during record().
void start(std::function<void()> kernel, Stream stream);
// Runs the queued kernels.
void finish_queued();
// Runs the queued kernels, poisons plans and delivers collected numbers.
// Errors: aborts during record(), as collect() does.
void wait(Stream stream);

// Returns: address for kernels of a copy of `plan`, or during record() its place in device memory.
// The copy becomes 0xff at the next wait().
// Errors: aborts during record() if the part is outside the recording's plan.
const void* mirror(const void* plan, size_t bytes, Stream stream);

// Returns: zeroed memory for numbers that kernels write; the next wait() copies them to `to`.
void* collect(void* to, size_t bytes, Stream stream);

// Waits, then copies to host memory.
void download(void* to, const void* from, int64_t bytes, Stream stream);
// Memory that host and kernels access, small, so that tests cover more than one slice.
std::span<std::byte> staging(Stream stream);

RecordOps record;

}  // namespace tessera::simt::emulation
