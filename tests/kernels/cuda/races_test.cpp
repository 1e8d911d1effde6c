// The search for races itself: small kernels with and without one.

#include "tests/kernels/cuda/emulator/races.h"

#include <gtest/gtest.h>

#include "kernels/cuda/simt/block.h"
#include "tests/kernels/cuda/emulator/emulated_stream.h"

namespace tessera::simt::emulation {
namespace {

constexpr int32_t kThreads = 64;

void with_barrier(int32_t* out) {
  auto& memory = shared<OfWarps<int32_t>>();
  if (thread() == 0) {
    memory.of[0] = 0;
    memory.of[1] = 0;
  }
  sync_block();
  if (lane() == 0) {
    memory.of[warp()] = thread();
  }
  sync_block();
  out[thread()] = memory.of[1 - warp()];
}
void without_barrier(int32_t* out) {
  auto& memory = shared<OfWarps<int32_t>>();
  if (lane() == 0) {
    memory.of[warp()] = thread();
  }
  out[thread()] = memory.of[1 - warp()];
}
void between_blocks(int32_t* out) {
  out[thread()] = block_y();
}
void in_a_warp(int32_t* out) {
  out[thread()] = thread();
  sync_warp();
  out[thread() ^ 1] += 1;
}
// A shuffle exchanges registers; it does not order memory.
void behind_a_shuffle(int32_t* out) {
  out[thread()] = thread();
  shuffle(0, 0);
  out[thread() ^ 1] += 1;
}
void one_count(int32_t* out) {
  atomic_add(out, 1);
}
void count_and_read(int32_t* out) {
  atomic_add(out, 1);
  out[1 + thread()] = *out;
}
struct CopiesOfThreads {
  Words of[kThreads];
};
constexpr Words kSource[kThreads] = {};
template <bool kBarrier>
void copied(int32_t* out) {
  auto& to = shared<CopiesOfThreads>();
  copy_ahead(&to.of[thread()], &kSource[thread()]);
  end_copy_group();
  wait_for_copies<0>();
  if (kBarrier) {
    sync_warp();
  }
  out[thread()] = static_cast<int32_t>(to.of[thread() ^ 1].at[0]);
}
template <bool kBarrier>
void between_blocks_of_a_cluster(int32_t* out) {
  auto& memory = shared<OfWarps<int32_t>>();
  sync_cluster();
  if (lane() == 0) {
    *in_block(&memory.of[warp()], 1 - cluster_rank()) = thread();
  }
  if (kBarrier) {
    sync_cluster();
  }
  const int32_t own = memory.of[warp()];
  sync_cluster();
  if (cluster_rank() == own % kWarp) {
    out[thread()] = own;
  }
}
// Blocks of a cluster write the same global memory in turns.
void in_turns(int32_t* out) {
  if (cluster_rank() == 0) {
    out[thread()] = 1;
  }
  sync_cluster();
  if (cluster_rank() == 1) {
    out[thread()] += 1;
  }
}
void neighbouring_bytes(int32_t* out) {
  reinterpret_cast<char*>(out)[thread()] = 1;
}

// Returns: number of pairs of instructions that raced.
int64_t races_of(void (*kernel)(int32_t*), int32_t blocks, int32_t cluster = 1) {
  static std::vector<int32_t> out(1 + kThreads);
  launch({},
         {.grid_y = blocks,
          .threads = kThreads,
          .shared_bytes = sizeof(CopiesOfThreads),
          .cluster = cluster},
         kernel, out.data());
  wait(Stream{});
  return Races::of_process().forget();
}

TEST(Races, BarriersOrderABlockAndAWarp) {
  EXPECT_EQ(races_of(with_barrier, 1), 0);
  EXPECT_EQ(races_of(in_a_warp, 1), 0);
  EXPECT_EQ(races_of(neighbouring_bytes, 1), 0);
}

TEST(Races, AMissingBarrierIsFound) {
  EXPECT_GT(races_of(without_barrier, 1), 0);
  EXPECT_GT(races_of(behind_a_shuffle, 1), 0);
}

TEST(Races, AThreadWaitsForItsOwnCopiesAlone) {
  EXPECT_EQ(races_of(copied<true>, 1), 0);
  EXPECT_GT(races_of(copied<false>, 1), 0);
}

TEST(Races, BlocksAreUnordered) {
  EXPECT_EQ(races_of(between_blocks, 1), 0);
  EXPECT_GT(races_of(between_blocks, 2), 0);
  EXPECT_GT(races_of(with_barrier, 2), 0) << "a barrier orders its own block alone";
}

TEST(Races, BarriersOfAClusterOrderItsBlocks) {
  EXPECT_EQ(races_of(between_blocks_of_a_cluster<true>, 2, 2), 0);
  EXPECT_GT(races_of(between_blocks_of_a_cluster<false>, 2, 2), 0);
  EXPECT_EQ(races_of(in_turns, 2, 2), 0);
  EXPECT_GT(races_of(in_turns, 4, 2), 0) << "clusters are unordered";
}

TEST(Races, AtomicsRaceWithOtherAccessesAlone) {
  EXPECT_EQ(races_of(one_count, 3), 0);
  EXPECT_GT(races_of(count_and_read, 1), 0);
}

}  // namespace
}  // namespace tessera::simt::emulation
