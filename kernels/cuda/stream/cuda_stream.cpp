#include "kernels/cuda/stream/cuda_stream.h"

#include <cstring>

#include "base/check.h"

namespace tessera::cuda {
namespace {

constexpr size_t kMaxPlanBytes = CudaStream::kPlanBytes / 4;
constexpr size_t kAlign = 64;  // bytes; alignment of the parts of the stream's memory

constexpr size_t aligned(size_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

// Returns: limits of the current device.
simt::DeviceLimits device_limits() {
  int device = 0;
  int multiprocessors = 0;
  int capability = 0;
  int shared_bytes = 0;
  check(cudaGetDevice(&device));
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  check(cudaDeviceGetAttribute(&capability, cudaDevAttrComputeCapabilityMajor, device));
  check(cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
  return {.multiprocessors = multiprocessors,
          .cluster = capability < 9 ? 1 : simt::kMaxCluster,
          .shared_bytes = shared_bytes};
}

}  // namespace

void check(cudaError_t error) {
  TESSERA_CHECK(error == cudaSuccess, cudaGetErrorString(error));
}

void upload(void* to, const void* from, size_t bytes) {
  check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
  check(cudaStreamSynchronize(cudaStreamLegacy));
}

CudaStream::CudaStream() : limits_(device_limits()) {
  check(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking));
  void* memory = nullptr;
  check(cudaMallocHost(&memory, kPlanBytes));
  pinned_ = static_cast<std::byte*>(memory);
  check(cudaMalloc(&memory, kPlanBytes));
  device_ = static_cast<std::byte*>(memory);
  check(cudaMallocHost(&memory, kStagingBytes));
  staging_ = static_cast<std::byte*>(memory);
  check(cudaMalloc(&memory, kMaxPlanBytes));
  recorded_place_ = static_cast<std::byte*>(memory);
  check(cudaMalloc(&memory, kCollectedBytes));
  numbers_ = static_cast<std::byte*>(memory);
  check(cudaMallocHost(&memory, kCollectedBytes));
  pinned_numbers_ = static_cast<std::byte*>(memory);
}

CudaStream::~CudaStream() {
  cudaStreamSynchronize(handle_);  // copies may still read the memory below
  cudaStreamDestroy(handle_);
  cudaFreeHost(pinned_numbers_);
  cudaFree(numbers_);
  cudaFree(recorded_place_);
  cudaFreeHost(staging_);
  cudaFree(device_);
  cudaFreeHost(pinned_);
}

void CudaStream::launch(const simt::LaunchShape& shape, const void* kernel, void** args) {
  TESSERA_CHECK(shape.grid_y <= 65535, "a launch with more rows of blocks than CUDA has");
  TESSERA_CHECK(shape.cluster <= limits_.cluster, "a cluster that the device cannot launch");
  // More than 48 KiB of shared memory, and a division of it, must be requested once; repeating the
  // request costs almost nothing.
  if (shape.shared_bytes > 48 * 1024) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               shape.shared_bytes));
  }
  if (shape.most_shared) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                               cudaSharedmemCarveoutMaxShared));
  }
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {1, static_cast<unsigned>(shape.cluster), 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = {static_cast<unsigned>(shape.grid_x), static_cast<unsigned>(shape.grid_y), 1};
  config.blockDim = {static_cast<unsigned>(shape.threads), 1, 1};
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = handle_;
  config.attrs = &cluster;
  config.numAttrs = shape.cluster > 1 ? 1 : 0;
  check(cudaLaunchKernelExC(&config, kernel, args));
}

const void* CudaStream::mirror(const void* plan, size_t bytes) {
  if (bytes == 0) {
    return nullptr;
  }
  if (!recorded_.empty()) {
    const auto* part = static_cast<const std::byte*>(plan);
    TESSERA_CHECK(part >= recorded_.data() && part + bytes <= recorded_.data() + recorded_.size(),
                  "a recording reads memory outside its plan");
    return recorded_place_ + (part - recorded_.data());
  }
  for (int32_t i = 0; i < mirrored_count_; ++i) {
    const Mirrored& known = mirrored_[i];
    // The host memory may have new content by now.
    if (known.plan == plan && known.bytes == bytes &&
        std::memcmp(pinned_ + known.offset, plan, bytes) == 0) {
      return device_ + known.offset;
    }
  }
  const size_t offset = stage(plan, bytes);
  check(
      cudaMemcpyAsync(device_ + offset, pinned_ + offset, bytes, cudaMemcpyHostToDevice, handle_));
  if (mirrored_count_ < kMirrored) {
    mirrored_[mirrored_count_++] = {plan, bytes, offset};
  }
  return device_ + offset;
}

size_t CudaStream::stage(const void* plan, size_t bytes) {
  TESSERA_CHECK(bytes <= kMaxPlanBytes, "a step's plan is larger than its pinned memory");
  const bool wraps = head_ + bytes > kPlanBytes;
  const size_t taken = aligned(bytes) + (wraps ? kPlanBytes - head_ : 0);
  // The other half keeps plans whose kernels are not launched yet.
  if (staged_ + taken > kPlanBytes / 2) {
    synchronize();
  }
  const size_t offset = wraps ? 0 : head_;
  staged_ += taken;
  head_ = offset + aligned(bytes);
  std::memcpy(pinned_ + offset, plan, bytes);
  return offset;
}

void CudaStream::put_recorded(std::span<const std::byte> plan) {
  const size_t offset = stage(plan.data(), plan.size());
  check(cudaMemcpyAsync(recorded_place_, pinned_ + offset, plan.size(), cudaMemcpyHostToDevice,
                        handle_));
}

void* CudaStream::collect(void* to, size_t bytes) {
  if (bytes == 0) {
    return nullptr;
  }
  TESSERA_CHECK(recorded_.empty(), "numbers cannot be collected in a recording");
  TESSERA_CHECK(bytes <= kCollectedBytes, "more numbers to collect than there is memory for");
  if (collected_bytes_ + bytes > kCollectedBytes || collected_count_ == kCollected) {
    synchronize();
  }
  const size_t offset = collected_bytes_;
  collected_bytes_ = aligned(offset + bytes);
  collected_[collected_count_++] = {to, bytes, offset};
  check(cudaMemsetAsync(numbers_ + offset, 0, bytes, handle_));
  return numbers_ + offset;
}

void CudaStream::synchronize() {
  if (collected_bytes_ > 0) {
    check(cudaMemcpyAsync(pinned_numbers_, numbers_, collected_bytes_, cudaMemcpyDeviceToHost,
                          handle_));
  }
  check(cudaStreamSynchronize(handle_));
  for (int32_t i = 0; i < collected_count_; ++i) {
    const Collected& part = collected_[i];
    std::memcpy(part.to, pinned_numbers_ + part.offset, part.bytes);
  }
  staged_ = 0;
  mirrored_count_ = 0;
  collected_bytes_ = 0;
  collected_count_ = 0;
}

void CudaStream::download(void* to, const void* from, size_t bytes) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, handle_));
  synchronize();
}

}  // namespace tessera::cuda
