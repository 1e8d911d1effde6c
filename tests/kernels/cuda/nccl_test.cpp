// One rank on one GPU: that sums go through NCCL on the stream. More ranks need more GPUs; what
// they compute is tests/models/tensor_parallel_test.cpp's, on CPUs.

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "kernels/cuda/nccl/nccl_communicator.h"
#include "kernels/cuda/stream.h"

namespace tessera::cuda {
namespace {

TEST(Nccl, TheSumOverOneRankIsWhatItHas) {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    GTEST_SKIP() << "no GPU";
  }
  const auto ranks = make_nccl_communicator(make_nccl_group(), 0, 1);
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
