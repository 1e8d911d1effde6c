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
  static constexpr size_t kCollectedBytes = size_t{64} << 10;

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

  // The other way: device memory, zero before what is launched from now on, whose numbers are in
  // `to` once the stream has been waited for. All of a step's come with one copy.
  void* collect(void* to, size_t bytes);

  // ---- a recording's plan (kernels/recording.h), which stands in one place for all recordings

  // From now on plans are parts of this one, until the next call; empty: they are plans again.
  void set_recorded(std::span<const std::byte> plan) { recorded_ = plan; }
  // What is launched from now on finds it there.
  void put_recorded(std::span<const std::byte> plan);

  // Waits for all that was launched. What was mirrored is forgotten, what was collected delivered.
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
  size_t stage(const void* plan, size_t bytes);  // its offset in pinned memory

  struct Collected {
    void* to;
    size_t bytes;
    size_t offset;
  };
  static constexpr int32_t kMirrored = 64;  // looked through for the same plan
  static constexpr int32_t kCollected = 16;

  cudaStream_t handle_ = nullptr;
  std::byte* pinned_ = nullptr;
  std::byte* device_ = nullptr;
  std::byte* staging_ = nullptr;
  std::byte* recorded_place_ = nullptr;
  std::span<const std::byte> recorded_;
  std::byte* numbers_ = nullptr;         // to be collected
  std::byte* pinned_numbers_ = nullptr;  // as they came
  size_t used_ = 0;
  Mirrored mirrored_[kMirrored] = {};
  int32_t mirrored_count_ = 0;
  size_t collected_bytes_ = 0;
  Collected collected_[kCollected] = {};
  int32_t collected_count_ = 0;
};

}  // namespace tessera::cuda
