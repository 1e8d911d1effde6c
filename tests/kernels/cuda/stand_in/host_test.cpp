// The backend's real host code (stream.cpp, memory.cpp, recording.cpp) over the stand-in for CUDA's
// runtime, whose work runs as late as CUDA allows.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/probe/probe.h"
#include "kernels/cuda/stream/cuda_stream.h"
#include "kernels/recording.h"
#include "tests/kernels/cuda/stand_in/runtime.h"

namespace tessera::cuda {
namespace {

std::vector<int32_t> numbers_from(int32_t first, size_t count) {
  std::vector<int32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

std::array<unsigned, 3> sizes(const dim3& of) {
  return {of.x, of.y, of.z};
}

class CudaHost : public testing::Test {
 protected:
  // Launches a kernel that copies numbers. The result can be read after a wait.
  void copy_later(const void* from, size_t count) {
    stand_in::launch(stream_.handle(), [this, from, count] {
      const auto* numbers = static_cast<const int32_t*>(from);
      seen_.assign(numbers, numbers + count);
    });
  }
  const void* mirror(const std::vector<int32_t>& plan) {
    return stream_.mirror(plan.data(), plan.size() * sizeof(int32_t));
  }

  CudaStream stream_;
  std::vector<int32_t> seen_;
};

TEST_F(CudaHost, AnUploadLandsBeforeKernelsThatReadIt) {
  const DeviceBytes memory = allocate(device_memory(), 400);
  std::vector<int32_t> numbers = numbers_from(7, 100);
  const std::vector<int32_t> expected = numbers;
  device_memory().upload(memory.get(), numbers.data(), 400);
  std::fill(numbers.begin(), numbers.end(), -1);  // the caller's memory is its own again
  copy_later(memory.get(), 100);
  stream_.synchronize();
  EXPECT_EQ(seen_, expected);
}

TEST_F(CudaHost, APlanMayChangeOnceItIsMirrored) {
  std::vector<int32_t> plan = numbers_from(1, 50);
  copy_later(mirror(plan), plan.size());
  const std::vector<int32_t> expected = plan;
  std::fill(plan.begin(), plan.end(), -1);
  stream_.synchronize();
  EXPECT_EQ(seen_, expected);
}

TEST_F(CudaHost, OneCopyServesAPlanUntilItChanges) {
  std::vector<int32_t> plan = numbers_from(1, 50);
  const void* first = mirror(plan);
  EXPECT_EQ(mirror(plan), first);
  plan[3] = 99;
  EXPECT_NE(mirror(plan), first);
}

TEST_F(CudaHost, PlansSurviveAWaitBeforeTheirKernelIsLaunched) {
  const std::vector<int32_t> first = numbers_from(0, 250'000);
  const std::vector<int32_t> second = numbers_from(1'000'000, 250'000);
  const void* early = mirror(first);
  std::vector<int32_t> collected(40);
  for (int32_t& number : collected) {  // more than one wait delivers
    stream_.collect(&number, sizeof(number));
  }
  mirror(second);
  copy_later(early, first.size());
  stream_.synchronize();
  EXPECT_EQ(seen_, first);
}

TEST_F(CudaHost, ManyPlansWithoutAWaitReachTheirKernels) {
  std::vector<std::vector<int32_t>> results;
  results.reserve(40);
  for (int32_t i = 0; i < 40; ++i) {
    const void* a = mirror(numbers_from(i, 150'000));
    const void* b = mirror(numbers_from(-i, 100'000));
    std::vector<int32_t>& result = results.emplace_back(2);
    stand_in::launch(stream_.handle(), [a, b, &result] {
      result = {static_cast<const int32_t*>(a)[149'999], static_cast<const int32_t*>(b)[99'999]};
    });
  }
  stream_.synchronize();
  for (int32_t i = 0; i < 40; ++i) {
    EXPECT_EQ(results[static_cast<size_t>(i)], (std::vector{i + 149'999, 99'999 - i}));
  }
}

TEST_F(CudaHost, CollectedNumbersComeWithTheWait) {
  int32_t number = -1;
  auto* place = static_cast<int32_t*>(stream_.collect(&number, sizeof(number)));
  stand_in::launch(stream_.handle(), [place] { *place += 5; });
  EXPECT_EQ(number, -1);
  stream_.synchronize();
  EXPECT_EQ(number, 5);
}

TEST_F(CudaHost, ADownloadFollowsTheLaunchedKernels) {
  const DeviceBytes memory = allocate(device_memory(), 4);
  stand_in::launch(stream_.handle(), [at = reinterpret_cast<int32_t*>(memory.get())] { *at = 11; });
  int32_t number = 0;
  device_memory().download(&number, memory.get(), 4, stream_.stream());
  EXPECT_EQ(number, 11);
}

TEST_F(CudaHost, ARecordingReadsThePlanOfItsStart) {
  std::vector<std::byte> plan(16 * sizeof(int32_t));
  const auto recording = record(
      {plan, [&] { copy_later(stream_.mirror(plan.data(), plan.size()), 16); }}, stream_.stream());
  for (const int32_t first : {3, 300}) {
    std::vector<int32_t> numbers = numbers_from(first, 16);
    recording->start(std::as_bytes(std::span(numbers)), stream_.stream());
    const std::vector<int32_t> expected = std::exchange(numbers, {});
    stream_.synchronize();
    EXPECT_EQ(seen_, expected);
  }
}

TEST_F(CudaHost, StartsOfARecordingInARowReadTheirOwnPlans) {
  std::vector<std::byte> plan(sizeof(int32_t));
  std::vector<int32_t> all;
  const auto recording = record({plan,
                                 [&] {
                                   const void* at = stream_.mirror(plan.data(), plan.size());
                                   stand_in::launch(stream_.handle(), [&all, at] {
                                     all.push_back(*static_cast<const int32_t*>(at));
                                   });
                                 }},
                                stream_.stream());
  all.clear();
  for (int32_t i = 0; i < 5; ++i) {
    recording->start(std::as_bytes(std::span(&i, 1)), stream_.stream());
  }
  stream_.synchronize();
  EXPECT_EQ(all, numbers_from(0, 5));
}

TEST_F(CudaHost, AClusterIsAnAttributeOfItsLaunch) {
  const int kernel = 0;  // its address is that of a kernel
  const auto launched = [&](const simt::LaunchShape& shape) {
    stream_.launch(shape, &kernel, nullptr);
    stream_.synchronize();
    return stand_in::last_launch();
  };
  const auto clustered =
      launched({.grid_x = 3, .grid_y = 8, .threads = 64, .shared_bytes = 100, .cluster = 4});
  EXPECT_EQ(clustered.kernel, &kernel);
  EXPECT_EQ(clustered.stream, stream_.handle());
  EXPECT_EQ(sizes(clustered.grid), (std::array{3u, 8u, 1u}));
  EXPECT_EQ(sizes(clustered.block), (std::array{64u, 1u, 1u}));
  EXPECT_EQ(clustered.shared_bytes, 100);
  EXPECT_EQ(sizes(clustered.cluster), (std::array{1u, 4u, 1u}));
  EXPECT_EQ(sizes(launched({}).cluster), (std::array{0u, 0u, 0u})) << "a block alone needs none";
}

TEST_F(CudaHost, MoreSharedMemoryThanUsualIsRequestedFirst) {
  const int kernel = 0;
  stream_.launch({.shared_bytes = 64 << 10}, &kernel, nullptr);
  stream_.synchronize();
  EXPECT_EQ(stand_in::last_launch().shared_bytes, 64 << 10);
}

TEST_F(CudaHost, AKernelTakesMemoryFromTheCacheIfItsLaunchSaysSo) {
  const int kernel = 0;
  for (const bool most : {false, true}) {
    stream_.launch({.most_shared = most}, &kernel, nullptr);
    stream_.synchronize();
    EXPECT_EQ(stand_in::last_launch().shared_percent, most ? 100 : cudaSharedmemCarveoutDefault);
  }
}

TEST(CudaDevice, HasClustersFromComputeCapability9On) {
  const CudaStream hopper;
  EXPECT_EQ(hopper.limits().cluster, 8);
  EXPECT_EQ(hopper.limits().multiprocessors, stand_in::kMultiprocessors);
  EXPECT_EQ(hopper.limits().shared_bytes, stand_in::kSharedBytes);
  stand_in::set_capability(8);
  CudaStream ampere;
  EXPECT_EQ(ampere.limits().cluster, 1);
  const int kernel = 0;
  EXPECT_DEATH(ampere.launch({.grid_y = 2, .cluster = 2}, &kernel, nullptr), "cannot launch");
  stand_in::set_capability(9);
}

using CudaHostDeath = CudaHost;

TEST_F(CudaHostDeath, ARecordingThatWaitsOrAllocatesIsRefused) {
  const std::vector<std::byte> plan(16);
  EXPECT_DEATH(record({plan, [&] { stream_.synchronize(); }}, stream_.stream()),
               "not permitted when stream is capturing");
  EXPECT_DEATH(record({plan, [&] { allocate(device_memory(), 8); }}, stream_.stream()),
               "previous error during capture");
  int32_t number = 0;
  EXPECT_DEATH(record({plan, [&] { stream_.collect(&number, 4); }}, stream_.stream()),
               "cannot be collected");
}

TEST_F(CudaHostDeath, HostMemoryInADevicesPlaceIsRefused) {
  std::vector<int32_t> numbers(4);
  EXPECT_DEATH(device_memory().upload(numbers.data(), numbers.data(), 16), "invalid argument");
  EXPECT_DEATH(device_memory().free(numbers.data()), "invalid argument");
}

TEST(CudaTeardown, WaitsForWorkThatReadsItsMemoryAndLeavesNothing) {
  const size_t before = stand_in::living();
  {
    CudaStream stream;
    const std::vector<int32_t> plan = numbers_from(0, 10);
    stream.mirror(plan.data(), 40);  // its copy has not run at the end of this scope
  }
  EXPECT_EQ(stand_in::living(), before);
}

TEST(CudaTeardown, MemoryMayOutliveTheRuntime) {
  const DeviceBytes memory = allocate(device_memory(), 400);
  stand_in::unload();
  device_memory().free(memory.get());  // the runtime has freed it: no effect
  stand_in::load();
}

TEST(CudaMemory, UseIsWhatTheDriverReports) {
  stand_in::set_device_bytes(size_t{1} << 30);
  const DeviceMemoryUse before = memory_use();
  EXPECT_EQ(before.total, 1 << 30);
  const DeviceBytes memory = allocate(device_memory(), 5 << 20);
  EXPECT_EQ(before.free - memory_use().free, 5 << 20);
  EXPECT_EQ(memory_use().total, before.total);
  stand_in::set_device_bytes(size_t{1} << 32);
}

TEST(CudaMemory, IsNullWhereTheDeviceHasTooLittle) {
  stand_in::set_device_bytes(size_t{1} << 20);
  EXPECT_EQ(allocate(device_memory(), 2 << 20), nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "the next launch would report the failure";
  EXPECT_NE(allocate(device_memory(), 1 << 10), nullptr);
  stand_in::set_device_bytes(size_t{1} << 32);
}

}  // namespace
}  // namespace tessera::cuda
