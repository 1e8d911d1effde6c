#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads/thread_pool.h"

namespace tessera::bench {

// Limits of a CPU, measured by loops without other work. Each time_ function returns the
// nanoseconds of one pass on all threads of the pool.

double time_read(ThreadPool& pool, std::span<const std::byte> from);

// streaming: stores that bypass the caches. plain: ordinary stores.
// Requires: both spans have equal length and are aligned to 64 bytes.
enum class Stores { plain, streaming };
double time_copy(ThreadPool& pool, std::span<const std::byte> from, std::span<std::byte> to,
                 Stores stores);

// Multiplications and additions by the instruction that the kernels of a format use. These are
// fmadd for f32 (and for bf16 without a dot product), vdpbf16ps and vpdpbusd. In AVX2 they are
// vpmaddwd or vpmaddubsw. For plain loops they are mulps and addps, or pmaddwd.
struct PeakLoop {
  void (*loop)();
  int64_t flops;  // flops of one run of the loop
  std::string_view instruction;
};
PeakLoop peak_loop(CpuIsa isa, WeightFormat arithmetic);
double time_peak(ThreadPool& pool, const PeakLoop& peak);

}  // namespace tessera::bench
