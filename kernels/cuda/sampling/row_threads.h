#pragma once

#include <cstdint>

#include "kernels/cuda/simt/block.h"
#include "kernels/cuda/simt/simt.h"

namespace tessera::cuda {

using namespace simt;

// Keys tried in one pass over a row. A pass leaves an eighth of the range.
constexpr int32_t kKeys = 7;

TESSERA_DEVICE int32_t warps() {
  return threads() / kWarp;
}

// Shared memory of each block of a row.
struct RowMemory {
  OfWarps<uint64_t> of_warps[kKeys];
  // Numbers of all blocks, in each of them. Calls take turns with two places, because a block may
  // still read one when another block writes for the next call.
  uint64_t of_blocks[2][kMaxCluster][kKeys];
};

// The threads that share a row: those of a cluster, which is the grid's y. Numbers are integers, so
// any order of additions gives the same sum. Requires: all threads of the cluster make the same
// calls; a block has two warps or more.
class RowThreads {
 public:
  // A barrier of the row's threads.
  TESSERA_DEVICE explicit RowThreads(RowMemory& memory) : memory_(memory) {
    simt::check(blocks() == cluster_blocks());
    sync_cluster();
  }

  // The thread's place among all.
  TESSERA_DEVICE int32_t number() const { return rank() * threads() + thread(); }
  TESSERA_DEVICE int32_t count() const { return blocks() * threads(); }
  TESSERA_DEVICE int32_t rank() const { return block_y(); }
  TESSERA_DEVICE int32_t blocks() const { return grid_y(); }

  // Returns: the sum over all threads, in every thread.
  TESSERA_DEVICE uint64_t total(uint64_t x) {
    uint64_t one[] = {x};
    totals(one);
    return one[0];
  }
  template <int32_t kNumbers>
  TESSERA_DEVICE void totals(uint64_t (&x)[kNumbers]) {
    TESSERA_UNROLL
    for (int32_t k = 0; k < kNumbers; ++k) {
      x[k] = warp_total(x[k]);
    }
    share_totals(x);
    TESSERA_UNROLL
    for (int32_t k = 0; k < kNumbers; ++k) {
      x[k] = 0;
    }
    TESSERA_UNROLL_BY(4)
    for (int32_t rank = 0; rank < blocks(); ++rank) {
      TESSERA_UNROLL
      for (int32_t k = 0; k < kNumbers; ++k) {
        x[k] += of_block(rank)[k];
      }
    }
  }

  // Returns: the largest number of all threads, in every thread.
  TESSERA_DEVICE uint64_t largest(uint64_t x) {
    for (int32_t mask = kWarp / 2; mask > 0; mask /= 2) {
      x = larger(x, shuffle_xor(x, mask));
    }
    const uint64_t one[] = {x};
    share(one, larger);
    TESSERA_UNROLL_BY(4)
    for (int32_t rank = 0; rank < blocks(); ++rank) {
      x = larger(x, of_block(rank)[0]);
    }
    return x;
  }

  // Returns: how many of the sums over all threads are `wanted` (> 0) or more, in every thread.
  TESSERA_DEVICE int32_t reaching(uint64_t wanted, uint64_t (&sums)[kKeys]) {
    TESSERA_UNROLL
    for (int32_t k = 0; k < kKeys; ++k) {
      sums[k] = warp_total(sums[k]);
    }
    share_totals(sums);
    uint64_t sum = 0;  // of the lane's key
    TESSERA_UNROLL_BY(4)
    for (int32_t rank = 0; lane() < kKeys && rank < blocks(); ++rank) {
      sum += of_block(rank)[lane()];
    }
    return popcount(ballot(sum >= wanted));
  }

  // Sums numbers of warps over each block; of_block() has the sums until the next call but one.
  template <int32_t kNumbers>
  TESSERA_DEVICE void share_totals(const uint64_t (&of_warp)[kNumbers]) {
    share(of_warp, [](uint64_t a, uint64_t b) { return a + b; });
  }
  TESSERA_DEVICE const uint64_t* of_block(int32_t rank) const {
    return memory_.of_blocks[turn_][rank];
  }

 private:
  TESSERA_DEVICE static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

  // Joins the numbers of the block's warps and writes the results to every block.
  template <int32_t kNumbers, class Join>
  TESSERA_DEVICE void share(const uint64_t (&of_warp)[kNumbers], Join&& join) {
    static_assert(kNumbers * kMaxCluster <= 2 * kWarp, "each number has a thread of its own");
    if (lane() == 0) {
      TESSERA_UNROLL
      for (int32_t k = 0; k < kNumbers; ++k) {
        memory_.of_warps[k].of[warp()] = of_warp[k];
      }
    }
    sync_block();
    turn_ = 1 - turn_;
    if (thread() < kNumbers * blocks()) {
      const int32_t k = thread() % kNumbers;
      uint64_t joined = 0;
      TESSERA_UNROLL_BY(8)
      for (int32_t w = 0; w < warps(); ++w) {
        joined = join(joined, memory_.of_warps[k].of[w]);
      }
      *in_block(&memory_.of_blocks[turn_][rank()][k], thread() / kNumbers) = joined;
    }
    sync_cluster();
  }

  RowMemory& memory_;
  int32_t turn_ = 0;
};

}  // namespace tessera::cuda
