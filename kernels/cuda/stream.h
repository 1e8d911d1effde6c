#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/backend.h"

namespace tessera::cuda {

// Aborts with CUDA's own words. What can fail because of the machine (no driver, no GPU, too little
// memory) is asked for when the backend is opened; in a step only our own bugs fail.
void check(cudaError_t error);

// What Stream::handle is for this backend: a CUDA stream, and memory for what kernels read of a
// step's plan. Plans (spans of tokens, sequences, growths ...) are host memory; mirror() brings
// them to the device through a ring of pinned memory of fixed size, and once for all ops of a step
// that name the same one. Made before the first step; allocates nothing later.
class CudaStream {
 public:
  static constexpr size_t kPlanBytes = size_t{4} << 20;     // between two synchronisations
  static constexpr size_t kStagingBytes = size_t{8} << 20;  // of what is saved or loaded

  CudaStream();
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  static CudaStream& of(Stream stream) { return *static_cast<CudaStream*>(stream.handle); }
  Stream stream() { return {this}; }
  cudaStream_t handle() const { return handle_; }

  // Device memory that holds these bytes for kernels that are launched from now on until
  // synchronize(). Waits for the device where steps that nobody waited for have filled kPlanBytes;
  // aborts where one plan is more than a quarter of it.
  const void* mirror(const void* plan, size_t bytes);

  // Waits for all that was launched. What was mirrored is forgotten.
  void synchronize();

  // Copies to host memory, and synchronizes.
  void download(void* to, const void* from, size_t bytes);

  // Pinned host memory that kernels reach as well.
  std::span<std::byte> staging() const { return {staging_, kStagingBytes}; }

 private:
  struct Mirrored {
    const void* plan;
    size_t bytes;
    size_t offset;
  };
  static constexpr int32_t kMirrored = 64;  // looked through for the same plan

  cudaStream_t handle_ = nullptr;
  std::byte* pinned_ = nullptr;
  std::byte* device_ = nullptr;
  std::byte* staging_ = nullptr;
  size_t used_ = 0;
  Mirrored mirrored_[kMirrored] = {};
  int32_t mirrored_count_ = 0;
};

}  // namespace tessera::cuda
