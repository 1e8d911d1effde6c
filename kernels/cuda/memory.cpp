#include <cuda_runtime.h>

#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/probe/probe.h"
#include "kernels/cuda/stream/cuda_stream.h"

namespace tessera::cuda {
namespace {

void* allocate(int64_t bytes) {
  void* memory = nullptr;
  if (cudaMalloc(&memory, static_cast<size_t>(bytes > 0 ? bytes : 1)) != cudaSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  return memory;
}

// Static objects may be destroyed after the runtime, which has freed all memory by then.
void release(void* memory) {
  const cudaError_t error = cudaFree(memory);
  check(error == cudaErrorCudartUnloading ? cudaSuccess : error);
}

void upload_bytes(void* to, const void* from, int64_t bytes) {
  upload(to, from, static_cast<size_t>(bytes));
}

void download(void* to, const void* from, int64_t bytes, Stream stream) {
  CudaStream::of(stream).download(to, from, static_cast<size_t>(bytes));
}

void wait(Stream stream) {
  CudaStream::of(stream).synchronize();
}

}  // namespace

const DeviceMemory& device_memory() {
  static constexpr DeviceMemory kMemory{.allocate = allocate,
                                        .free = release,
                                        .upload = upload_bytes,
                                        .download = download,
                                        .wait = wait};
  return kMemory;
}

DeviceMemoryUse memory_use() {
  size_t free = 0;
  size_t total = 0;
  check(cudaMemGetInfo(&free, &total));
  return {.free = static_cast<int64_t>(free), .total = static_cast<int64_t>(total)};
}

// Selects device 0, on which all memory and streams were created.
void attach_thread(Stream) {
  check(cudaSetDevice(0));
}

}  // namespace tessera::cuda
