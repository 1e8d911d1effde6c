#pragma once

#include "kernels/cuda/simt/simt.h"

namespace tessera::simt {

// Sums, maxima and prefix sums over a warp or a block. Additions have a fixed order.

TESSERA_DEVICE float warp_sum(float x) {
  for (int32_t mask = kWarp / 2; mask > 0; mask /= 2) {
    x += shuffle_xor(x, mask);
  }
  return x;
}

TESSERA_DEVICE float warp_max(float x) {
  for (int32_t mask = kWarp / 2; mask > 0; mask /= 2) {
    x = max(x, shuffle_xor(x, mask));
  }
  return x;
}

TESSERA_DEVICE float warp_min(float x) {
  for (int32_t mask = kWarp / 2; mask > 0; mask /= 2) {
    x = min(x, shuffle_xor(x, mask));
  }
  return x;
}

inline constexpr int32_t kMaxWarps = 32;

// Shared memory for one number of each warp.
template <class T>
struct OfWarps {
  T of[kMaxWarps];
};

// Returns: sum over the block, in every thread.
// Requires: all threads of the block call it. `memory`: shared memory, free again after the next
// sync_block().
TESSERA_DEVICE float block_sum(float x, OfWarps<float>& memory) {
  const float of_warp = warp_sum(x);
  if (lane() == 0) {
    memory.of[warp()] = of_warp;
  }
  sync_block();
  float sum = 0;
  for (int32_t i = 0; i < threads() / kWarp; ++i) {
    sum += memory.of[i];
  }
  return sum;
}

// Prefix sum over the threads of a block, in order of threads: start of a thread's items, and the
// number of items of all threads.
struct Place {
  int32_t first;
  int32_t all;
};
TESSERA_DEVICE Place block_place(int32_t count, OfWarps<int32_t>& memory) {
  int32_t until = count;  // inclusive prefix sum over the warp
  for (int32_t distance = 1; distance < kWarp; distance *= 2) {
    const int32_t before = shuffle(until, lane() >= distance ? lane() - distance : lane());
    until += lane() >= distance ? before : 0;
  }
  sync_block();  // the previous call's numbers have been read
  if (lane() == kWarp - 1) {
    memory.of[warp()] = until;
  }
  sync_block();
  Place place{until - count, 0};
  for (int32_t i = 0; i < threads() / kWarp; ++i) {
    place.first += i < warp() ? memory.of[i] : 0;
    place.all += memory.of[i];
  }
  return place;
}

// Returns: sum over the block, in every thread, in a fixed order.
// Requires: all threads call it.
TESSERA_DEVICE int32_t block_total(int32_t count, OfWarps<int32_t>& memory) {
  return block_place(count, memory).all;
}
template <class T>
TESSERA_DEVICE T warp_total(T x) {
  for (int32_t mask = kWarp / 2; mask > 0; mask /= 2) {
    x += shuffle_xor(x, mask);
  }
  return x;
}
template <class T>
TESSERA_DEVICE T block_total(T x, OfWarps<T>& memory) {
  x = warp_total(x);
  sync_block();  // the previous call's numbers have been read
  if (lane() == 0) {
    memory.of[warp()] = x;
  }
  sync_block();
  T sum = 0;
  for (int32_t i = 0; i < threads() / kWarp; ++i) {
    sum += memory.of[i];
  }
  return sum;
}
template <class T>
TESSERA_DEVICE T block_max(T x, OfWarps<T>& memory) {
  for (int32_t mask = kWarp / 2; mask > 0; mask /= 2) {
    const T other = shuffle_xor(x, mask);
    x = other > x ? other : x;
  }
  sync_block();
  if (lane() == 0) {
    memory.of[warp()] = x;
  }
  sync_block();
  for (int32_t i = 0; i < threads() / kWarp; ++i) {
    x = memory.of[i] > x ? memory.of[i] : x;
  }
  return x;
}

}  // namespace tessera::simt
