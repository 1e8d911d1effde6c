#pragma once

#include <immintrin.h>

#include "kernels/cpu/linear/tile_table.h"

// Simd type of AVX-512, for files compiled for it. It is in an anonymous namespace, as tile.h
// requires.
namespace tessera {
namespace {

// The bf16 of each E4M3 with positive sign (kernels/matrix/e4m3.h), split into low and high bytes.
struct E4m3Tables {
  alignas(64) uint8_t low[128];
  alignas(64) uint8_t high[128];

  constexpr E4m3Tables() : low(), high() {
    for (unsigned code = 0; code < 128; ++code) {
      const float subnormal = static_cast<float>(code) * 0x1p-9f;
      const unsigned bits = code == 127 ? 0x7fc0u
                            : code < 8  ? __builtin_bit_cast(unsigned, subnormal) >> 16
                                        : (code << 4) + (120u << 7);
      low[code] = static_cast<uint8_t>(bits);
      high[code] = static_cast<uint8_t>(bits >> 8);
    }
  }
};
inline constexpr E4m3Tables kE4m3Tables;

struct Simd512 {
  using Floats = __m512;
  using Ints = __m512i;
  static constexpr int kLanes = 16;
  static constexpr int kRegisters = 32;
  static constexpr int kPrefetchBytes = 4096;

  TESSERA_INLINE static __mmask16 mask(int64_t lanes) {
    return static_cast<__mmask16>(lanes >= kLanes ? 0xffff : (1 << lanes) - 1);
  }
  TESSERA_INLINE static Floats load(const float* from, __mmask16 mask) {
    return _mm512_maskz_loadu_ps(mask, from);
  }
  TESSERA_INLINE static void store(float* to, Floats value) { _mm512_storeu_ps(to, value); }
  TESSERA_INLINE static void store(float* to, __mmask16 mask, Floats value) {
    _mm512_mask_storeu_ps(to, mask, value);
  }
  TESSERA_INLINE static Ints load_units(const std::byte* from) { return _mm512_loadu_si512(from); }
  TESSERA_INLINE static Ints load_f16_units(const std::byte* from) {  // as f32
    return _mm512_castps_si512(
        _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
  }
  TESSERA_INLINE static void prefetch(const std::byte* from) {
    _mm_prefetch(reinterpret_cast<const char*>(from), _MM_HINT_T0);
  }
  TESSERA_INLINE static Ints broadcast_unit(const std::byte* from) {
    int32_t unit;
    __builtin_memcpy(&unit, from, sizeof(unit));
    return _mm512_set1_epi32(unit);
  }
  TESSERA_INLINE static Ints broadcast(int32_t value) { return _mm512_set1_epi32(value); }
  TESSERA_INLINE static Floats broadcast(float value) { return _mm512_set1_ps(value); }
  TESSERA_INLINE static Floats zero() { return _mm512_setzero_ps(); }
  TESSERA_INLINE static Floats to_bits(Ints value) { return _mm512_castsi512_ps(value); }
  TESSERA_INLINE static Floats to_floats(Ints value) { return _mm512_cvtepi32_ps(value); }
  TESSERA_INLINE static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  TESSERA_INLINE static Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  TESSERA_INLINE static Floats multiply_add(Floats a, Floats b, Floats sum) {
    return _mm512_fmadd_ps(a, b, sum);
  }
  template <WeightFormat kFormat>
  static constexpr int kParts = 1;
  template <WeightFormat kFormat>
  TESSERA_INLINE static Ints load_part(const std::byte* from, int /*part*/) {
    return kFormat == WeightFormat::f16 ? load_f16_units(from) : load_units(from);
  }
  template <WeightFormat kFormat>
  TESSERA_INLINE static Floats multiply_add(Floats sum, Ints weights, Ints input) {
    if constexpr (kFormat == WeightFormat::f32 || kFormat == WeightFormat::f16) {
      return _mm512_fmadd_ps(to_bits(weights), to_bits(input), sum);
    } else {
      return _mm512_dpbf16_ps(sum, (__m512bh)weights, (__m512bh)input);
    }
  }
  TESSERA_INLINE static Ints dot(Ints sum, Ints weights, Ints input) {
    // With the intrinsic, GCC 12 copies each sum before it adds to it, and spills half of them.
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(input));
    return sum;
  }

  TESSERA_INLINE static Floats load_f16(const std::byte* from) {
    return to_bits(load_f16_units(from));
  }
  TESSERA_INLINE static Floats load_factors(const std::byte* from) {  // int8
    return to_floats(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }
  TESSERA_INLINE static Ints shift_left(Ints value, int bits) {
    return _mm512_slli_epi32(value, static_cast<unsigned>(bits));
  }
  TESSERA_INLINE static Ints shift_right(Ints value, int bits) {
    return _mm512_srli_epi32(value, static_cast<unsigned>(bits));
  }
  TESSERA_INLINE static Ints or_masked(Ints value, Ints bits, int32_t mask) {
    return _mm512_ternarylogic_epi32(value, bits, broadcast(mask), 0xf8);  // value | (bits & mask)
  }

  // Sums of a symmetric format start from the correction of its offset.
  template <bool kHasMinimum>
  struct Sums {
    TESSERA_INLINE static Ints start(const std::byte* correction) {
      return kHasMinimum ? _mm512_setzero_si512() : broadcast_unit(correction);
    }
    TESSERA_INLINE static Ints dot(Ints sum, Ints weights, Ints input) {
      return Simd512::dot(sum, weights, input);
    }
    TESSERA_INLINE static Ints finish(Ints sum, const std::byte* /*correction*/) { return sum; }
  };

  struct Bytes : Sums<false> {
    static constexpr int kParts = 1;
    static constexpr int kLineInputs = 4;

    TESSERA_INLINE static void unpack(const std::byte* line, const std::byte* /*high*/,
                                      int /*index*/, Ints (&parts)[kParts]) {
      parts[0] = load_units(line);
    }
  };

  template <WeightFormat kFormat>
  struct Nibbles : Sums<encoding(kFormat).minimum> {
    static constexpr int kParts = 2;
    static constexpr int kLineInputs = 8;
    static constexpr int kHighBits = encoding(kFormat).bits - 4;

    TESSERA_INLINE static void unpack(const std::byte* line, const std::byte* high, int index,
                                      Ints (&parts)[kParts]) {
      const Ints nibbles = load_units(line);
      const Ints mask = _mm512_set1_epi8(0x0f);
      parts[0] = _mm512_and_si512(nibbles, mask);
      parts[1] = _mm512_and_si512(_mm512_srli_epi32(nibbles, 4), mask);
      if constexpr (kHighBits > 0) {
        parts[0] = add_high<Simd512, kHighBits>(parts[0], high, 2 * index);
        parts[1] = add_high<Simd512, kHighBits>(parts[1], high, 2 * index + 1);
      }
    }
  };

  // Tables hold the two bytes of the bf16 of each magnitude. vdpbf16ps reads subnormals as zero.
  // Moving the bits of a code to their places, as AVX2 does, would lose the smallest codes.
  struct E4m3 {
    Ints low[2];
    Ints high[2];

    TESSERA_INLINE E4m3() {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        low[half] = _mm512_load_si512(kE4m3Tables.low + 64 * half);
        high[half] = _mm512_load_si512(kE4m3Tables.high + 64 * half);
      }
    }
    TESSERA_INLINE void to_pairs(Ints codes, Ints& even, Ints& odd) const {
      const Ints lows = _mm512_permutex2var_epi8(low[0], codes, low[1]);
      const Ints highs = _mm512_permutex2var_epi8(high[0], codes, high[1]);
      // highs | (codes & 0x80), then bytes of one or the other
      const Ints tops = _mm512_ternarylogic_epi32(highs, codes, _mm512_set1_epi8(-128), 0xf8);
      constexpr __mmask64 kOddBytes = 0xaaaaaaaaaaaaaaaa;
      even = _mm512_mask_blend_epi8(kOddBytes, lows, _mm512_slli_epi16(tops, 8));
      odd = _mm512_mask_blend_epi8(kOddBytes, _mm512_srli_epi16(lows, 8), tops);
    }
    TESSERA_INLINE static Floats multiply_add(Floats sum, Ints pairs, Ints input) {
      return _mm512_dpbf16_ps(sum, (__m512bh)pairs, (__m512bh)input);
    }
  };
};

}  // namespace
}  // namespace tessera
