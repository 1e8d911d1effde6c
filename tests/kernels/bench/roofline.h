#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "kernels/cpu/backend.h"
#include "kernels/cpu/thread_pool.h"

namespace tessera {

// What this machine can do, measured by loops that do nothing else: units per nanosecond (GB/s,
// GFLOP/s) over all threads of the pool.

// Reading `bytes` of memory again and again.
double read_bandwidth(ThreadPool& pool, int64_t bytes);

// Multiplications and additions by the instruction that the kernels of a format use: fmadd for f32
// (and for bf16 where there is no dot product), vdpbf16ps, vpdpbusd; vpmaddwd or vpmaddubsw in
// AVX2.
double peak_flops(ThreadPool& pool, CpuIsa isa, WeightFormat format);

// How long `call(i)` takes, over at least 15 calls and a fifth of a second: the median for what is
// measured, the least for what it is compared with.
struct Nanoseconds {
  double median = 0;
  double least = 0;
};

template <class Call>
Nanoseconds time_of(Call&& call) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> samples;
  const auto end = Clock::now() + std::chrono::milliseconds(200);
  for (int64_t i = -3; samples.size() < 15 || Clock::now() < end; ++i) {
    const auto start = Clock::now();
    call(i + 3);
    const std::chrono::duration<double, std::nano> taken = Clock::now() - start;
    if (i >= 0) {
      samples.push_back(taken.count());
    }
  }
  std::sort(samples.begin(), samples.end());
  return {samples[samples.size() / 2], samples[0]};
}

}  // namespace tessera
