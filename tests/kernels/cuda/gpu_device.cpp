// Tests keep the memory of ops in std::vector. Here operator new returns managed memory, shared by
// host and GPU, so that the same tests run on a GPU. Small allocations come from one large piece
// and are not reused, because tests are short.

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>

#include "base/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/stream/cuda_stream.h"
#include "kernels/matrix/view.h"
#include "tests/kernels/device.h"

namespace {

constexpr size_t kAlign = 256;

bool has_gpu() {
  static const bool has = [] {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  }();
  return has;
}

// Returns: managed memory if the machine has it, else host memory that the GPU reads over the bus.
void* shared_memory(size_t bytes) {
  void* memory = nullptr;
  if (cudaMallocManaged(&memory, bytes) == cudaSuccess) {
    return memory;
  }
  cudaGetLastError();
  return cudaMallocHost(&memory, bytes) == cudaSuccess ? memory : nullptr;
}

void* take(size_t bytes) {
  constexpr size_t kPiece = size_t{64} << 20;
  static std::mutex mutex;
  static std::byte* piece = nullptr;
  static size_t left = 0;
  const std::lock_guard lock(mutex);
  if (bytes > left) {
    left = bytes > kPiece ? bytes : kPiece;
    piece = static_cast<std::byte*>(shared_memory(left));
    if (piece == nullptr) {
      std::fprintf(stderr, "no memory that host and GPU share\n");
      std::abort();
    }
  }
  void* taken = piece;
  piece += bytes;
  left -= bytes;
  return taken;
}

}  // namespace

// CUDA's host code allocates while it starts; these allocations come from malloc.
static thread_local bool g_in_cuda = false;

void* operator new(size_t bytes, std::align_val_t alignment) {
  TESSERA_CHECK(static_cast<size_t>(alignment) <= kAlign, "memory of a larger alignment");
  bytes = static_cast<size_t>(tessera::round_up(static_cast<int64_t>(bytes), kAlign));
  if (g_in_cuda) {
    return std::aligned_alloc(kAlign, bytes);
  }
  g_in_cuda = true;
  void* taken = has_gpu() ? take(bytes) : std::aligned_alloc(kAlign, bytes);
  g_in_cuda = false;
  if (taken == nullptr) {
    throw std::bad_alloc();
  }
  return taken;
}
void* operator new(size_t bytes) {
  return operator new (bytes, std::align_val_t{kAlign});
}
void operator delete(void*) noexcept {}
void operator delete(void*, size_t) noexcept {}
void operator delete(void*, std::align_val_t) noexcept {}
void operator delete(void*, size_t, std::align_val_t) noexcept {}

namespace tessera {

std::vector<Device> devices_of_this_machine() {
  if (!has_gpu()) {
    return {};
  }
  static cuda::CudaStream stream;
  return {{.name = "gpu",
           .backend = &cuda_backend(),
           .stream = stream.stream(),
           .wait = [](Stream on) { cuda::CudaStream::of(on).synchronize(); },
           .reach =
               [](void* memory, size_t bytes) {
                 if (memory != nullptr) {
                   cuda::check(cudaHostRegister(memory, bytes, cudaHostRegisterMapped));
                 }
               },
           .leave =
               [](void* memory) {
                 if (memory != nullptr) {
                   cuda::check(cudaHostUnregister(memory));
                 }
               }}};
}

}  // namespace tessera
