#pragma once

#include <cstdint>

#include "kernels/backend.h"

// Kernels that expose the instructions of simt.h to tests.

namespace tessera {

// d[16][8] += a[16][16] * b[16][8], row-major, one warp.
void multiply_f16(const f16* a, const f16* b, float* d, Stream stream);

// d[16][8] += a[16][32] * b[32][8].
void multiply_bytes(const uint8_t* a, const int8_t* b, int32_t* d, Stream stream);

// firsts[i], for i in [0, threads): sum of counts before counts[i]; firsts[threads]: the total.
void prefix_sum(const int32_t* counts, int32_t threads, int32_t* firsts, Stream stream);

// Results for each lane of [0, 32): ballot over bit 0 of `words`, number of set bits of the lane's
// word, and its two f16 plus 1 each.
struct Words32 {
  uint32_t ballots[32];
  int32_t counts[32];
  uint32_t sums[32];
};
void look_at_words(const uint32_t* words, Words32* results, Stream stream);

// results[group].of[lane]: words of load_transposed(), where lane i names row rows[group].of[i].
// Rows come to shared memory by groups of copies, two of them ahead.
struct alignas(16) Rows32 {
  uint16_t of[32][8];
};
struct alignas(16) Fragments32 {
  uint32_t of[32][4];
};
void transpose(const Rows32* rows, int32_t groups, Fragments32* results, Stream stream);

// Every thread of every block decrements owners[thread % count] once. before[block][thread]
// receives the number before that.
void release_all(uint16_t* owners, int32_t count, int32_t blocks, int32_t threads, uint16_t* before,
                 Stream stream);

// Returns: blocks of a cluster at most on the stream's device.
int32_t largest_cluster(Stream stream);

// Blocks of a grid of [clusters * cluster][columns] that a thread has met through shared memory.
struct Neighbours {
  int32_t rank;
  int32_t blocks;  // of the cluster
  int32_t read;    // number of the thread in the grid that the next block of the cluster holds
  int32_t given;   // that of the block before, which wrote it
};
// neighbours: of every thread, [clusters * cluster][columns][threads], at most kMeeting threads.
inline constexpr int32_t kMeeting = 64;
struct MeetingShape {
  int32_t columns;
  int32_t clusters;
  int32_t cluster;
  int32_t threads;
};
void meet_neighbours(const MeetingShape& shape, Neighbours* neighbours, Stream stream);

}  // namespace tessera
