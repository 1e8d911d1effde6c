// One rank on one GPU: that sums go through NCCL on the stream. More ranks need more GPUs; what
// they compute is tests/models/tensor_parallel_test.cpp's, on CPUs.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "kernels/cuda/nccl/nccl_communicator.h"
#include "kernels/cuda/stream.h"

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

TEST(Nccl, TheSumOverOneRankIsWhatItHas) {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    GTEST_SKIP() << "no GPU";
  }
  const auto ranks = make_nccl_communicator(std::make_unique<OneHost>());
  EXPECT_EQ(ranks->rank(), 0);
  EXPECT_EQ(ranks->ranks(), 1);
  std::vector<float> numbers(1000);
  std::iota(numbers.begin(), numbers.end(), -500.0f);
  const std::vector<float> before = numbers;
  const size_t bytes = numbers.size() * sizeof(float);
  void* device = nullptr;
  check(cudaMalloc(&device, bytes));
  check(cudaMemcpy(device, numbers.data(), bytes, cudaMemcpyHostToDevice));
  CudaStream stream;
  ranks->all_reduce_sum({static_cast<float*>(device), numbers.size()}, stream.stream());
  stream.synchronize();
  check(cudaMemcpy(numbers.data(), device, bytes, cudaMemcpyDeviceToHost));
  EXPECT_EQ(numbers, before);
  cudaFree(device);
}

}  // namespace
}  // namespace tessera::cuda
