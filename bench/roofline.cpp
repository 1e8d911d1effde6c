#include "bench/roofline.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "kernels/cpu/simd/tile_registers.h"

namespace tessera::bench {
namespace {

constexpr int64_t kLoopRounds = 200'000;
constexpr int kChains = 12;  // independent sums, enough to hide every latency

// One instruction on kChains registers, kLoopRounds times. The asm prevents compiler optimisations.
#define TESSERA_PEAK_LOOP(function, vector, instruction)                      \
  [[gnu::target("avx512f,avx2,fma")]] void function() {                       \
    vector sums[kChains] = {};                                                \
    vector input = {};                                                        \
    for (int64_t round = 0; round < kLoopRounds; ++round) {                   \
      _Pragma("GCC unroll 12") for (int i = 0; i < kChains; ++i) {            \
        asm volatile(instruction " %1, %1, %0" : "+v"(sums[i]) : "v"(input)); \
      }                                                                       \
    }                                                                         \
  }

TESSERA_PEAK_LOOP(fma_512, __m512, "vfmadd231ps")
TESSERA_PEAK_LOOP(bf16_512, __m512, "vdpbf16ps")
TESSERA_PEAK_LOOP(int8_512, __m512i, "vpdpbusd")
TESSERA_PEAK_LOOP(fma_256, __m256, "vfmadd231ps")

// Integers of AVX2 need a multiplication and an addition, which share the ports.
#define TESSERA_CHAIN_PEAK_LOOP(function, multiply, add)           \
  [[gnu::target("avx2")]] void function() {                        \
    __m256i sums[kChains] = {};                                    \
    __m256i input = {};                                            \
    for (int64_t round = 0; round < kLoopRounds; ++round) {        \
      _Pragma("GCC unroll 12") for (int i = 0; i < kChains; ++i) { \
        __m256i products;                                          \
        asm volatile(multiply " %2, %2, %1\n\t" add " %1, %0, %0"  \
                     : "+x"(sums[i]), "=&x"(products)              \
                     : "x"(input));                                \
      }                                                            \
    }                                                              \
  }

TESSERA_CHAIN_PEAK_LOOP(madd_add_256, "vpmaddwd", "vpaddd")
TESSERA_CHAIN_PEAK_LOOP(maddubs_add_256, "vpmaddubsw", "vpaddw")

// Baseline x86-64 without any extension: two-operand instructions on 128 bits.
#define TESSERA_PLAIN_PEAK_LOOP(function, vector, even, odd)          \
  void function() {                                                   \
    vector sums[kChains] = {};                                        \
    vector input = {};                                                \
    for (int64_t round = 0; round < kLoopRounds; ++round) {           \
      _Pragma("GCC unroll 12") for (int i = 0; i < kChains; i += 2) { \
        asm volatile(even " %2, %0\n\t" odd " %2, %1"                 \
                     : "+x"(sums[i]), "+x"(sums[i + 1])               \
                     : "x"(input));                                   \
      }                                                               \
    }                                                                 \
  }

TESSERA_PLAIN_PEAK_LOOP(mul_add_128, __m128, "mulps", "addps")
TESSERA_PLAIN_PEAK_LOOP(madd_128, __m128i, "pmaddwd", "paddd")

// Four tile registers hold sums; the other four are left for inputs.
constexpr int kTileChains = 4;
#define TESSERA_TILE_PEAK_LOOP(function, instruction)                                          \
  void function() {                                                                            \
    asm volatile("ldtilecfg %0" : : "m"(amx::kTileConfig));                                    \
    for (int64_t round = 0; round < kLoopRounds; ++round) {                                    \
      asm volatile(instruction " %tmm5, %tmm4, %tmm0\n\t" instruction                          \
                               " %tmm5, %tmm4, %tmm1\n\t" instruction                          \
                               " %tmm5, %tmm4, %tmm2\n\t" instruction " %tmm5, %tmm4, %tmm3"); \
    }                                                                                          \
    asm volatile("tilerelease");                                                               \
  }

TESSERA_TILE_PEAK_LOOP(bf16_tiles, "tdpbf16ps")

// flops: operations for one sum of one tile product.
constexpr PeakLoop tile_peak(void (*loop)(), int64_t flops, std::string_view instruction) {
  return {loop, kLoopRounds * kTileChains * amx::kTileRows * amx::kTileRows * flops, instruction};
}

constexpr PeakLoop peak(void (*loop)(), int64_t flops, std::string_view instruction) {
  return {loop, kLoopRounds * kChains * flops, instruction};
}

template <class Call>
double nanoseconds_of(Call&& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
}

constexpr int64_t kAhead = 8192;

[[gnu::target("avx2")]] void read_256(const std::byte* from, int64_t bytes) {
  __m256i sums[4] = {};
  for (int64_t at = 0; at + 128 <= bytes; at += 128) {
    const auto* ahead = reinterpret_cast<const char*>(from + at) + kAhead;
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

void read_128(const std::byte* from, int64_t bytes) {
  __m128i sums[4] = {};
  for (int64_t at = 0; at + 64 <= bytes; at += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(from + at) + kAhead, _MM_HINT_T0);
    for (int i = 0; i < 4; ++i) {
      const auto* value = reinterpret_cast<const __m128i*>(from + at + 16 * i);
      sums[i] = _mm_xor_si128(sums[i], _mm_loadu_si128(value));
    }
  }
  asm volatile("" : : "m"(sums));
}

void copy_around_caches(const std::byte* from, std::byte* to, int64_t bytes) {
  for (int64_t at = 0; at + 64 <= bytes; at += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(from + at) + kAhead, _MM_HINT_T0);
    for (int64_t i = at; i < at + 64; i += 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                       _mm_load_si128(reinterpret_cast<const __m128i*>(from + i)));
    }
  }
  _mm_sfence();
}

// Returns: bytes of a piece. Pieces are small, so that no thread waits long for another, but large
// enough that the cost of claiming them is low.
int64_t piece_of(ThreadPool& pool, size_t bytes) {
  const int64_t even = static_cast<int64_t>(bytes) / (4 * pool.threads());
  return std::clamp<int64_t>(even / 4096 * 4096, 4096, 1 << 20);
}

}  // namespace

double time_read(ThreadPool& pool, std::span<const std::byte> from) {
  const auto read = cpu_supports(CpuIsa::avx2) ? read_256 : read_128;
  return nanoseconds_of([&] {
    pool.parallel_for(
        std::ssize(from), piece_of(pool, from.size()),
        [&](int64_t begin, int64_t end, int) { read(from.data() + begin, end - begin); });
  });
}

double time_copy(ThreadPool& pool, std::span<const std::byte> from, std::span<std::byte> to,
                 Stores stores) {
  return nanoseconds_of([&] {
    pool.parallel_for(std::ssize(from), piece_of(pool, from.size()),
                      [&](int64_t begin, int64_t end, int) {
                        const std::byte* source = from.data() + begin;
                        std::byte* target = to.data() + begin;
                        if (stores == Stores::streaming) {
                          copy_around_caches(source, target, end - begin);
                        } else {
                          std::memcpy(target, source, static_cast<size_t>(end - begin));
                        }
                      });
  });
}

PeakLoop peak_loop(CpuIsa isa, WeightFormat arithmetic) {
  const bool integers = arithmetic == WeightFormat::int8 || arithmetic == WeightFormat::int4;
  switch (isa) {
    case CpuIsa::amx:
      if (arithmetic == WeightFormat::bf16) {
        return tile_peak(bf16_tiles, amx::kTileRowBytes, "tdpbf16ps tmm");
      }
      [[fallthrough]];  // other weights use vector instructions
    case CpuIsa::avx512:
    case CpuIsa::avx512_fp16:
      return integers ? peak(int8_512, 128, "vpdpbusd zmm")
             : arithmetic == WeightFormat::bf16 || arithmetic == WeightFormat::fp8
                 ? peak(bf16_512, 64, "vdpbf16ps zmm")
                 : peak(fma_512, 32, "vfmadd231ps zmm");
    case CpuIsa::avx2:
      return !integers ? peak(fma_256, 16, "vfmadd231ps ymm")
             : arithmetic == WeightFormat::int8
                 ? peak(madd_add_256, 32, "vpmaddwd + vpaddd ymm")
                 : peak(maddubs_add_256, 64, "vpmaddubsw + vpaddw ymm");
    case CpuIsa::scalar:
      break;
  }
  // pmaddwd makes 8 products and 4 sums, paddd 4 sums: 16 in two instructions.
  return integers ? peak(madd_128, 8, "pmaddwd + paddd xmm")
                  : peak(mul_add_128, 4, "mulps + addps xmm");
}

double time_peak(ThreadPool& pool, const PeakLoop& peak) {
  return nanoseconds_of(
      [&] { pool.parallel_for(pool.threads(), 1, [&](int64_t, int64_t, int) { peak.loop(); }); });
}

}  // namespace tessera::bench
