#include <cuda_runtime.h>

#include "kernels/cuda/ops.h"
#include "kernels/cuda/stream.h"

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

void release(void* memory) {
  check(cudaFree(memory));
}

void upload(void* to, const void* from, int64_t bytes) {
  check(cudaMemcpy(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice));
}

void download(void* to, const void* from, int64_t bytes, Stream stream) {
  CudaStream::of(stream).download(to, from, static_cast<size_t>(bytes));
}

void wait(Stream stream) {
  CudaStream::of(stream).synchronize();
}

}  // namespace

const DeviceMemory& device_memory() {
  static constexpr DeviceMemory kMemory{
      .allocate = allocate, .free = release, .upload = upload, .download = download, .wait = wait};
  return kMemory;
}

// Selects device 0, on which all memory and streams were created.
void attach_thread(Stream) {
  check(cudaSetDevice(0));
}

}  // namespace tessera::cuda
