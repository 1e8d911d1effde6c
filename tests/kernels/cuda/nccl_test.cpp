// One rank on one GPU: checks that sums go through NCCL on the stream. More ranks need more GPUs.
// tests/models/tensor_parallel_test.cpp checks the results of several ranks, on CPUs.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "kernels/cuda/nccl/nccl_communicator.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/stream/cuda_stream.h"
#include "kernels/recording.h"

namespace tessera::cuda {
namespace {

class OneHost final : public Communicator {
 public:
  int32_t rank() const override { return 0; }
  int32_t ranks() const override { return 1; }
  void all_reduce_sum(std::span<float>, Stream) override {}
  bool records_sums() const override { return false; }
  void broadcast(std::span<std::byte>) override {}
  void all_gather(std::span<const int64_t> own, std::span<int64_t> all) override {
    std::copy(own.begin(), own.end(), all.begin());
  }
  [[noreturn]] void abort() override { std::abort(); }
};

bool has_gpu() {
  int gpus = 0;
  return cudaGetDeviceCount(&gpus) == cudaSuccess && gpus > 0;
}

// Numbers in the GPU memory of a rank.
class DeviceNumbers {
 public:
  DeviceNumbers() : numbers_(1000) {
    std::iota(numbers_.begin(), numbers_.end(), -500.0f);
    void* memory = nullptr;
    check(cudaMalloc(&memory, bytes()));
    memory_ = static_cast<float*>(memory);
    upload(memory_, numbers_.data(), bytes());
  }
  ~DeviceNumbers() { cudaFree(memory_); }
  DeviceNumbers(const DeviceNumbers&) = delete;
  DeviceNumbers& operator=(const DeviceNumbers&) = delete;

  std::span<float> span() const { return {memory_, numbers_.size()}; }
  void expect_unchanged() const {
    std::vector<float> now(numbers_.size());
    check(cudaMemcpy(now.data(), memory_, bytes(), cudaMemcpyDeviceToHost));
    EXPECT_EQ(now, numbers_);
  }

 private:
  size_t bytes() const { return numbers_.size() * sizeof(float); }

  std::vector<float> numbers_;
  float* memory_ = nullptr;
};

TEST(Nccl, TheSumOverOneRankIsWhatItHas) {
  if (!has_gpu()) {
    GTEST_SKIP() << "no GPU";
  }
  const auto ranks = make_nccl_communicator(std::make_unique<OneHost>());
  EXPECT_EQ(ranks->rank(), 0);
  EXPECT_EQ(ranks->ranks(), 1);
  const DeviceNumbers numbers;
  CudaStream stream;
  ranks->all_reduce_sum(numbers.span(), stream.stream());
  stream.synchronize();
  numbers.expect_unchanged();
}

TEST(Nccl, SumsAreRecordedWithOps) {
  if (!has_gpu()) {
    GTEST_SKIP() << "no GPU";
  }
  const auto ranks = make_nccl_communicator(std::make_unique<OneHost>());
  ASSERT_TRUE(ranks->records_sums());
  const DeviceNumbers numbers;
  CudaStream stream;
  const std::vector<std::byte> plan(16);
  const auto recording = record(
      {plan, [&] { ranks->all_reduce_sum(numbers.span(), stream.stream()); }}, stream.stream());
  recording->start(plan, stream.stream());
  recording->start(plan, stream.stream());
  stream.synchronize();
  numbers.expect_unchanged();
}

}  // namespace
}  // namespace tessera::cuda
