// The emulation itself: orders of threads, launches that wait for the host, limits of a launch.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/simt/simt.h"
#include "tests/kernels/cuda/emulator/emulated_stream.h"
#include "tests/kernels/cuda/emulator/schedule.h"

namespace tessera::simt::emulation {
namespace {

std::vector<int32_t> arranged(Schedule& schedule, size_t count) {
  std::vector<int32_t> numbers(count);
  schedule.arrange(numbers);
  return numbers;
}

TEST(EmulatedSchedule, ArrangesByItsName) {
  Schedule ascending("ascending");
  EXPECT_EQ(arranged(ascending, 4), (std::vector{0, 1, 2, 3}));
  Schedule descending("descending");
  EXPECT_EQ(arranged(descending, 4), (std::vector{3, 2, 1, 0}));
  Schedule shuffled("shuffled:7");
  Schedule same("shuffled:7");
  const std::vector<int32_t> first = arranged(shuffled, 32);
  EXPECT_EQ(first, arranged(same, 32)) << "a seed repeats its order";
  EXPECT_NE(first, arranged(shuffled, 32)) << "the next turn has another";
  std::vector<int32_t> sorted = first;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, arranged(ascending, 32));
}

TEST(EmulatedScheduleDeath, UnknownNamesAreRefused) {
  EXPECT_DEATH(Schedule("backwards"), "unknown order");
  EXPECT_DEATH(Schedule("shuffled:"), "needs a seed");
  EXPECT_DEATH(Schedule("shuffled:1x"), "needs a seed");
}

void add_kernel(const int32_t* plan, int32_t* sum) {
  if (thread() == 0) {
    *sum += *plan;
  }
}

TEST(EmulatedStream, KernelsRunWhenTheHostWaitsAndReadThePlanOfTheirLaunch) {
  int32_t plan = 5;
  int32_t sum = 0;
  const int32_t* copy = simt::mirror(std::span<const int32_t>(&plan, 1), {});
  launch({}, {}, add_kernel, copy, &sum);
  plan = 1000;
  EXPECT_EQ(sum, 0) << "an early read";
  wait(Stream{});
  EXPECT_EQ(sum, 5);
  EXPECT_EQ(*copy, -1) << "a plan is not valid after the wait";
}

// Faults of two blocks in a cluster, each of which a GPU might let pass.
enum class Fault { none, early_end, other_barrier, no_first_barrier, no_last_barrier };
template <Fault kFault>
void cluster_kernel(int32_t* out) {
  int32_t& own = shared<int32_t>();
  const bool other = cluster_rank() == 1;
  sync_block();  // of each block alone
  if (kFault == Fault::early_end && other && warp() == 1) {
    return;
  }
  if (kFault == Fault::other_barrier && other && warp() == 1) {
    sync_block();
  }
  if (kFault != Fault::no_first_barrier) {
    sync_cluster();
  }
  if (thread() == 0) {
    *in_block(&own, 1 - cluster_rank()) = cluster_rank();
  }
  if (kFault != Fault::no_last_barrier) {
    sync_cluster();
  }
  if (thread() == 0) {
    out[cluster_rank()] = own;
  }
}
void run_cluster(void (*kernel)(int32_t*), int32_t* out) {
  launch({}, {.grid_y = 2, .threads = 64, .shared_bytes = 4, .cluster = 2}, kernel, out);
  wait(Stream{});
}

TEST(EmulatedCluster, ExchangesItsSharedMemory) {
  int32_t out[2] = {-1, -1};
  run_cluster(cluster_kernel<Fault::none>, out);
  EXPECT_EQ(out[0], 1);
  EXPECT_EQ(out[1], 0);
}

TEST(EmulatedClusterDeath, ABarrierWithoutAllThreadsIsRefused) {
  int32_t out[2];
  EXPECT_DEATH(run_cluster(cluster_kernel<Fault::early_end>, out),
               "barrier of the cluster that others never reach");
  EXPECT_DEATH(run_cluster(cluster_kernel<Fault::other_barrier>, out),
               "barrier of the cluster that others never reach");
}

TEST(EmulatedClusterDeath, ABlockThatMayNotHaveBegunOrMayHaveEndedIsRefused) {
  int32_t out[2];
  EXPECT_DEATH(run_cluster(cluster_kernel<Fault::no_first_barrier>, out), "may not have begun");
  EXPECT_DEATH(run_cluster(cluster_kernel<Fault::no_last_barrier>, out), "may have ended");
}

constexpr Words kCopied = {{1, 2, 3, 4}};
template <int kLater, bool kWaitsForAll>
void copy_kernel(int32_t* out) {
  auto& to = shared<Words[2][kWarp]>();
  for (auto& of_group : to) {
    copy_ahead(&of_group[lane()], &kCopied);
    end_copy_group();
  }
  wait_for_copies<kLater>();
  for (int32_t i = 0; i < 2 && lane() == 0; ++i) {
    out[i] = static_cast<int32_t>(to[i][0].at[0]);
  }
  if (kWaitsForAll) {
    wait_for_copies<0>();
  }
}
void run_copies(void (*kernel)(int32_t*), int32_t* out) {
  launch({}, {.threads = kWarp, .shared_bytes = sizeof(Words[2][kWarp])}, kernel, out);
  wait(Stream{});
}

TEST(EmulatedCopies, AreMissingUntilTheirGroupIsWaitedFor) {
  int32_t out[2];
  run_copies(copy_kernel<1, true>, out);
  EXPECT_EQ(out[0], 1);
  EXPECT_EQ(out[1], -1);
  run_copies(copy_kernel<0, true>, out);
  EXPECT_EQ(out[0], 1);
  EXPECT_EQ(out[1], 1);
}

TEST(EmulatedCopiesDeath, AThreadThatEndsBeforeItsCopiesIsRefused) {
  int32_t out[2];
  EXPECT_DEATH(run_copies(copy_kernel<1, false>, out), "ended before its copies");
}

TEST(EmulatedLaunchDeath, ShapesThatNoGpuHasAreRefused) {
  EXPECT_DEATH(check_shape({.grid_y = 65536}), "more blocks");
  EXPECT_DEATH(check_shape({.threads = 1056}), "whole warps");
  EXPECT_DEATH(check_shape({.threads = 40}), "whole warps");
  EXPECT_DEATH(check_shape({.shared_bytes = 100 << 10}), "shared memory");
  EXPECT_DEATH(check_shape({.grid_y = 16, .cluster = 16}), "more blocks than every GPU");
  EXPECT_DEATH(check_shape({.grid_y = 6, .cluster = 4}), "no multiple");
  check_shape({.grid_x = 1 << 30, .grid_y = 65535, .threads = 1024, .shared_bytes = 99 << 10});
}

}  // namespace
}  // namespace tessera::simt::emulation
