#include "kernels/cuda/stream.h"

#include <cstring>

#include "kernels/check.h"

namespace tessera::cuda {

void check(cudaError_t error) {
  TESSERA_CHECK(error == cudaSuccess, cudaGetErrorString(error));
}

CudaStream::CudaStream() {
  check(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking));
  void* memory = nullptr;
  check(cudaMallocHost(&memory, kPlanBytes));
  pinned_ = static_cast<std::byte*>(memory);
  check(cudaMalloc(&memory, kPlanBytes));
  device_ = static_cast<std::byte*>(memory);
  check(cudaMallocHost(&memory, kStagingBytes));
  staging_ = static_cast<std::byte*>(memory);
}

CudaStream::~CudaStream() {
  cudaFreeHost(staging_);
  cudaFree(device_);
  cudaFreeHost(pinned_);
  cudaStreamDestroy(handle_);
}

const void* CudaStream::mirror(const void* plan, size_t bytes) {
  if (bytes == 0) {
    return nullptr;
  }
  for (int32_t i = 0; i < mirrored_count_; ++i) {
    const Mirrored& known = mirrored_[i];
    // The same place may hold something else by now.
    if (known.plan == plan && known.bytes == bytes &&
        std::memcmp(pinned_ + known.offset, plan, bytes) == 0) {
      return device_ + known.offset;
    }
  }
  constexpr size_t kAlign = 64;
  TESSERA_CHECK(bytes <= kPlanBytes / 4, "a step's plan is larger than its pinned memory");
  if (used_ + bytes > kPlanBytes) {
    synchronize();
  }
  const size_t offset = used_;
  used_ = (offset + bytes + kAlign - 1) / kAlign * kAlign;
  std::memcpy(pinned_ + offset, plan, bytes);
  check(
      cudaMemcpyAsync(device_ + offset, pinned_ + offset, bytes, cudaMemcpyHostToDevice, handle_));
  if (mirrored_count_ < kMirrored) {
    mirrored_[mirrored_count_++] = {plan, bytes, offset};
  }
  return device_ + offset;
}

void CudaStream::synchronize() {
  check(cudaStreamSynchronize(handle_));
  used_ = 0;
  mirrored_count_ = 0;
}

void CudaStream::download(void* to, const void* from, size_t bytes) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, handle_));
  synchronize();
}

}  // namespace tessera::cuda
