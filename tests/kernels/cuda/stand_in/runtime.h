#pragma once

// A stand-in for CUDA's runtime, so that the backend's host code runs in tests without a GPU. It
// does each thing as late as the documentation allows, and is stricter to show mistakes:
//   - Work of a stream runs when the host waits for that stream, and not before.
//   - Pinned memory is read when a copy runs; so the host must not change it until then.
//   - A copy from pageable memory to the device by cudaMemcpy() lands when the host waits for the
//     legacy stream: "the DMA to final destination may not have completed" (CUDA Runtime API, "API
//     synchronization behavior"). A non-blocking stream does not wait for it.
//   - During a capture, calls that wait, allocate or free fail, and spoil the capture.
//   - A copy's addresses must be in one allocation of the space that its kind says.
//   - Aborts if pinned memory is freed, or a stream destroyed, before their work has run.
// Kernels are the emulation's (tests/kernels/cuda/emulator). Not thread-safe.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

namespace tessera::stand_in {

// Launches a kernel on a stream, or adds it to the stream's capture.
void launch(cudaStream_t stream, std::function<void()> kernel);

// The last launch by cudaLaunchKernelExC(), which runs nothing.
struct Launched {
  const void* kernel = nullptr;
  cudaStream_t stream = nullptr;
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  dim3 cluster{0, 0, 0};  // zeroes: without the attribute
  // Percent of a multiprocessor's memory that its blocks share, not the first-level cache.
  int shared_percent = cudaSharedmemCarveoutDefault;
};
const Launched& last_launch();

// Sets the compute capability of later streams' device; 9 at first. It has kMultiprocessors.
inline constexpr int kMultiprocessors = 132;
inline constexpr int kSharedBytes = 228 << 10;  // of a multiprocessor
void set_capability(int major);

// Returns: true if [memory, memory + bytes) is in one allocation on the device.
bool on_device(const void* memory, size_t bytes);

// Returns: true if work of a stream, or a copy, has not run yet.
bool work_is_pending();

// Returns: allocations of device and pinned memory that are not freed, and streams, graphs and
// executable graphs that are not destroyed.
size_t living();

// From now on every call fails with cudaErrorCudartUnloading, as after the end of main(); until
// load().
void unload();
void load();

// Limits the device's memory; allocations beyond it fail.
void set_device_bytes(size_t bytes);

}  // namespace tessera::stand_in
