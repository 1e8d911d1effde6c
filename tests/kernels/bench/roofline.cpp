#include "tests/kernels/bench/roofline.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

namespace tessera {
namespace {

constexpr int64_t kRounds = 200'000;
constexpr int kChains = 12;  // independent sums, enough to hide every latency

// One instruction on kChains registers, kRounds times. The asm keeps the compiler from thinking.
#define TESSERA_PEAK_LOOP(function, vector, instruction)                      \
  [[gnu::target("avx512f,avx2,fma")]] void function() {                       \
    vector sums[kChains] = {};                                                \
    vector input = {};                                                        \
    for (int64_t round = 0; round < kRounds; ++round) {                       \
      _Pragma("GCC unroll 12") for (int i = 0; i < kChains; ++i) {            \
        asm volatile(instruction " %1, %1, %0" : "+v"(sums[i]) : "v"(input)); \
      }                                                                       \
    }                                                                         \
  }

TESSERA_PEAK_LOOP(fma_512, __m512, "vfmadd231ps")
TESSERA_PEAK_LOOP(bf16_512, __m512, "vdpbf16ps")
TESSERA_PEAK_LOOP(int8_512, __m512i, "vpdpbusd")
TESSERA_PEAK_LOOP(fma_256, __m256, "vfmadd231ps")
TESSERA_PEAK_LOOP(madd_256, __m256i, "vpmaddwd")
TESSERA_PEAK_LOOP(maddubs_256, __m256i, "vpmaddubsw")

struct Peak {
  void (*loop)();
  int64_t flops;  // of an instruction
};

Peak peak_of(CpuIsa isa, WeightFormat format) {
  if (isa == CpuIsa::avx512) {
    switch (format) {
      case WeightFormat::f32:
        return {fma_512, 32};
      case WeightFormat::bf16:
        return {bf16_512, 64};
      case WeightFormat::int8:
      case WeightFormat::int4:
        return {int8_512, 128};
    }
  }
  switch (format) {
    case WeightFormat::int8:
      return {madd_256, 32};
    case WeightFormat::int4:
      return {maddubs_256, 64};
    case WeightFormat::f32:
    case WeightFormat::bf16:
      return {fma_256, 16};
  }
  return {fma_256, 16};
}

[[gnu::target("avx2")]] void read(const std::byte* from, int64_t bytes) {
  __m256i sums[4] = {};
  for (int64_t at = 0; at + 128 <= bytes; at += 128) {
    const auto* ahead = reinterpret_cast<const char*>(from + at) + 8192;
    _mm_prefetch(ahead, _MM_HINT_T0);
    _mm_prefetch(ahead + 64, _MM_HINT_T0);
    for (int i = 0; i < 4; ++i) {
      __m256i value;
      std::memcpy(&value, from + at + 32 * i, sizeof(value));
      sums[i] = _mm256_xor_si256(sums[i], value);
    }
  }
  asm volatile("" : : "m"(sums));
}

}  // namespace

double read_bandwidth(ThreadPool& pool, int64_t bytes) {
  const std::vector<std::byte> memory(static_cast<size_t>(bytes), std::byte{1});
  const int64_t piece = std::clamp<int64_t>(bytes / (4 * pool.threads()), 4096, 1 << 20);
  const Nanoseconds time = time_of([&](int64_t) {
    pool.parallel_for(bytes, piece, [&](int64_t begin, int64_t end, int) {
      read(memory.data() + begin, end - begin);
    });
  });
  return static_cast<double>(bytes) / time.least;
}

double peak_flops(ThreadPool& pool, CpuIsa isa, WeightFormat format) {
  const Peak peak = peak_of(isa, format);
  const Nanoseconds time = time_of([&](int64_t) {
    pool.parallel_for(pool.threads(), 1, [&](int64_t, int64_t, int) { peak.loop(); });
  });
  return static_cast<double>(kRounds * kChains * peak.flops * pool.threads()) / time.least;
}

}  // namespace tessera
