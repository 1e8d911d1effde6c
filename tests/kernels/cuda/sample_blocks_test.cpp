// Number of blocks that share a row of logits, and devices that run the tests of `sample` with one
// block and with several.

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "kernels/cuda/sampling/sample.h"
#include "tests/kernels/cuda/simt_kernels.h"
#include "tests/kernels/device.h"

namespace tessera {
namespace {

template <int32_t kBlocks>
void sample_by(const SampleArgs& args, Stream stream) {
  cuda::sample_by_blocks(args, kBlocks, stream);
}

struct Sampler {
  int32_t blocks;
  decltype(Backend::sample) sample;
};
constexpr Sampler kSamplers[] = {{1, sample_by<1>}, {8, sample_by<8>}};

}  // namespace

std::vector<Device> sampling_devices() {
  static std::deque<Backend> backends;
  std::vector<Device> devices;
  for (const Device& device : devices_of_this_machine()) {
    devices.push_back(device);
    for (const Sampler& sampler : kSamplers) {
      if (sampler.blocks <= largest_cluster(device.stream)) {
        Device& other = devices.emplace_back(device);
        other.name += "_" + std::to_string(sampler.blocks) + "_blocks";
        other.backend = &backends.emplace_back(*device.backend);
        backends.back().sample = sampler.sample;
      }
    }
  }
  return devices;
}

namespace cuda {
namespace {

constexpr simt::DeviceLimits kH100{.multiprocessors = 132, .cluster = 8};

TEST(RowBlocks, FewRowsGetAllThatAClusterCanHave) {
  EXPECT_EQ(row_blocks(1, 128256, kH100), 8);
  EXPECT_EQ(row_blocks(16, 128256, kH100), 8);
}

TEST(RowBlocks, EachHasAMultiprocessorOfItsOwn) {
  EXPECT_EQ(row_blocks(17, 128256, kH100), 4);
  EXPECT_EQ(row_blocks(33, 128256, kH100), 4);
  EXPECT_EQ(row_blocks(34, 128256, kH100), 2);
  EXPECT_EQ(row_blocks(66, 128256, kH100), 2);
  EXPECT_EQ(row_blocks(67, 128256, kH100), 1);
  EXPECT_EQ(row_blocks(1000, 128256, kH100), 1);
}

TEST(RowBlocks, EachHasEightTokensAThread) {
  EXPECT_EQ(row_blocks(1, 8 * 8192, kH100), 8);
  EXPECT_EQ(row_blocks(1, 8 * 8192 - 1, kH100), 4);
  EXPECT_EQ(row_blocks(1, 32000, kH100), 2);
  EXPECT_EQ(row_blocks(1, 2 * 8192 - 1, kH100), 1);
  EXPECT_EQ(row_blocks(1, 1, kH100), 1);
}

TEST(RowBlocks, AreOneWhereTheDeviceHasNoClusters) {
  EXPECT_EQ(row_blocks(1, 128256, {.multiprocessors = 108, .cluster = 1}), 1);
}

}  // namespace
}  // namespace cuda
}  // namespace tessera
