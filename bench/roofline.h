#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/cpu/backend.h"
#include "kernels/cpu/thread_pool.h"

namespace tessera::bench {

// What a CPU can do, by loops that do nothing else. Each returns the nanoseconds that one pass took
// on all threads of the pool.

double time_read(ThreadPool& pool, std::span<const std::byte> from);

// With stores that go around the caches, or with plain ones; both spans as long, and aligned to 64.
enum class Stores { plain, streaming };
double time_copy(ThreadPool& pool, std::span<const std::byte> from, std::span<std::byte> to,
                 Stores stores);

// Multiplications and additions by the instruction that the kernels of a format use: fmadd for f32
// (and for bf16 where there is no dot product), vdpbf16ps, vpdpbusd; vpmaddwd or vpmaddubsw in
// AVX2; mulps and addps, or pmaddwd, for plain loops.
struct PeakLoop {
  void (*loop)();
  int64_t flops;  // of one run of the loop
  std::string_view instruction;
};
PeakLoop peak_loop(CpuIsa isa, WeightFormat arithmetic);
double time_peak(ThreadPool& pool, const PeakLoop& peak);

}  // namespace tessera::bench
