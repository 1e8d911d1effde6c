#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/backend.h"
#include "kernels/cuda/stream/launch_shape.h"

namespace tessera::cuda {

// Aborts with CUDA's error text. Failures of the machine (no driver, no GPU, too little memory) are
// detected when the backend is opened. An error during a step is a bug of this program.
void check(cudaError_t error);

// Copies from host to device memory. Returns after the copy has landed. cudaMemcpy() alone returns
// earlier if `from` is pageable, and kernels of a non-blocking stream do not wait for the rest.
void upload(void* to, const void* from, size_t bytes);

// The object behind Stream::handle of this backend: a CUDA stream, and memory for the parts of a
// step's plan that kernels read. Plans (spans of tokens, sequences, growths ...) are host memory.
// mirror() copies them to the device through pinned memory of fixed size, once for all ops of a
// step that name the same plan. Created before the first step; allocates nothing later. Not
// thread-safe.
class CudaStream {
 public:
  static constexpr size_t kPlanBytes = size_t{4} << 20;     // ring of mirrored plans
  static constexpr size_t kStagingBytes = size_t{8} << 20;  // size of staging()
  static constexpr size_t kCollectedBytes = size_t{64} << 10;

  CudaStream();
  // Waits for all launched work. Recordings and communicators that use the stream are gone by then.
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  static CudaStream& of(Stream stream) { return *static_cast<CudaStream*>(stream.handle); }
  Stream stream() { return {this}; }
  cudaStream_t handle() const { return handle_; }
  // Abilities of the stream's device. Compute capability 9 brought clusters.
  const simt::DeviceLimits& limits() const { return limits_; }

  // Starts a kernel (its address on the host). `args`: addresses of its arguments, which are
  // copied.
  void launch(const simt::LaunchShape& shape, const void* kernel, void** args);

  // Copies a plan (host memory, not owned) to the device.
  // Returns: a device address; null for 0 bytes. It is valid for kernels that are launched before
  // another kPlanBytes / 2 of plans and before the next step, also if a wait comes between.
  // Synchronizes first if plans since the last wait fill kPlanBytes / 2.
  // Errors: aborts if the plan is larger than kPlanBytes / 4.
  const void* mirror(const void* plan, size_t bytes);

  // Opposite direction of mirror().
  // Returns: device memory, zeroed before later launches, to which kernels write numbers; null for
  // 0 bytes. The next synchronize() copies them to `to` (host memory, not owned). All numbers of a
  // step come with one copy.
  // Errors: aborts in a recording, or if `bytes` is larger than kCollectedBytes.
  void* collect(void* to, size_t bytes);

  // ---- the plan of a recording (kernels/recording.h); all recordings share one device buffer

  // From now on mirror() expects parts of `plan` and returns their place in that buffer, until the
  // next call. Empty: back to normal mirroring.
  void set_recorded(std::span<const std::byte> plan) { recorded_ = plan; }
  // Copies `plan` to that buffer, for later launches.
  void put_recorded(std::span<const std::byte> plan);

  // Waits for all launched work, forgets all mirrored plans and delivers all collected numbers.
  void synchronize();

  // Copies `bytes` bytes to host memory, and synchronizes.
  void download(void* to, const void* from, size_t bytes);

  // Pinned host memory that kernels can access too.
  std::span<std::byte> staging() const { return {staging_, kStagingBytes}; }

 private:
  struct Mirrored {
    const void* plan;
    size_t bytes;
    size_t offset;
  };
  size_t stage(const void* plan, size_t bytes);  // returns: offset in pinned memory

  struct Collected {
    void* to;
    size_t bytes;
    size_t offset;
  };
  static constexpr int32_t kMirrored = 64;  // plans that mirror() searches for the same one
  static constexpr int32_t kCollected = 16;

  cudaStream_t handle_ = nullptr;
  simt::DeviceLimits limits_;
  std::byte* pinned_ = nullptr;
  std::byte* device_ = nullptr;
  std::byte* staging_ = nullptr;
  std::byte* recorded_place_ = nullptr;
  std::span<const std::byte> recorded_;
  std::byte* numbers_ = nullptr;         // collected numbers, on the device
  std::byte* pinned_numbers_ = nullptr;  // their copy on the host
  size_t head_ = 0;                      // place of the next plan in the ring
  size_t staged_ = 0;                    // bytes of the ring used since the last wait
  Mirrored mirrored_[kMirrored] = {};
  int32_t mirrored_count_ = 0;
  size_t collected_bytes_ = 0;
  Collected collected_[kCollected] = {};
  int32_t collected_count_ = 0;
};

}  // namespace tessera::cuda
