#include <immintrin.h>

#include "kernels/cpu/linear/tile.h"

namespace tessera {
namespace {

// The bf16 of each E4M3 of positive sign (kernels/e4m3.h), by bytes.
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
constexpr E4m3Tables kE4m3Tables;

struct Simd512 {
  using Floats = __m512;
  using Ints = __m512i;
  static constexpr int kLanes = 16;
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
  template <Element E>
  TESSERA_INLINE static Floats multiply_add(Floats sum, Ints weights, Ints input) {
    if constexpr (E == Element::f32) {
      return _mm512_fmadd_ps(to_bits(weights), to_bits(input), sum);
    } else {
      return _mm512_dpbf16_ps(sum, (__m512bh)weights, (__m512bh)input);
    }
  }
  TESSERA_INLINE static Ints dot(Ints sum, Ints weights, Ints input) {
    // The intrinsic makes GCC 12 copy each sum before it adds to it, and spill half of them.
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(input));
    return sum;
  }

  TESSERA_INLINE static Ints low_nibbles(Ints nibbles) {
    return _mm512_and_si512(nibbles, _mm512_set1_epi8(0x0f));
  }
  TESSERA_INLINE static Ints high_nibbles(Ints nibbles) {
    return low_nibbles(_mm512_srli_epi32(nibbles, 4));
  }
  TESSERA_INLINE static Ints start_group(int32_t correction) { return broadcast(correction); }
  TESSERA_INLINE static Ints dot_nibbles(Ints sum, Ints weights, Ints input) {
    return dot(sum, weights, input);
  }
  TESSERA_INLINE static Ints finish_group(Ints sum, int32_t /*correction*/) { return sum; }
  TESSERA_INLINE static Floats group_scale(const std::byte* scales, int64_t lane) {
    const Ints both = load_units(scales);
    return to_bits(lane == 0 ? _mm512_slli_epi32(both, 16)
                             : _mm512_and_si512(both, _mm512_set1_epi32(-65536)));
  }

  // The two bytes of each magnitude's bf16 stand in tables; vdpbf16ps takes subnormals for zero, so
  // that moving a code's bits to their places, as AVX2 does, would lose the smallest.
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
      // highs | (codes & 0x80), then bytes of one or of the other
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

// Sixteen inputs, zero beyond the row's end.
TESSERA_INLINE __m512 load_inputs(const ActivationRow& row, int64_t at) {
  return at + 16 <= row.cols ? _mm512_loadu_ps(row.in + at)
         : at < row.cols     ? _mm512_maskz_loadu_ps(Simd512::mask(row.cols - at), row.in + at)
                             : _mm512_setzero_ps();
}

// Writes at most `bytes` of a vector.
TESSERA_INLINE void store_bytes(std::byte* to, __m256i value, int64_t bytes) {
  if (bytes >= 32) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
  } else {
    _mm256_mask_storeu_epi8(to, (1u << bytes) - 1, value);
  }
}

void convert_f32(const ActivationRow& row) {
  for (int64_t at = 0; at * 4 < row.out_bytes; at += 16) {
    _mm512_mask_storeu_ps(row.out + at * 4, Simd512::mask(row.out_bytes / 4 - at),
                          load_inputs(row, at));
  }
}

void convert_bf16(const ActivationRow& row) {
  for (int64_t at = 0; at * 2 < row.out_bytes; at += 16) {
    store_bytes(row.out + at * 2, (__m256i)_mm512_cvtneps_pbh(load_inputs(row, at)),
                row.out_bytes - at * 2);
  }
}

// Sets the scale and returns what to multiply inputs by. Magnitudes order as their bits do, and a
// NaN is above all of them: it reaches the scale, and so every output.
float find_scale(const ActivationRow& row, float highest) {
  const __m512i magnitude_bits = _mm512_set1_epi32(0x7fffffff);
  __m512i largest = _mm512_setzero_si512();
  for (int64_t at = 0; at < row.cols; at += 16) {
    const __m512i in = _mm512_castps_si512(load_inputs(row, at));
    largest = _mm512_max_epu32(largest, _mm512_and_si512(in, magnitude_bits));
  }
  const float magnitude = _mm_cvtss_f32(
      _mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(_mm512_reduce_max_epu32(largest)))));
  const bool vanishes = magnitude < 1e-30f;  // its inverse might not be finite
  *row.scale = vanishes ? 0.0f : magnitude / highest;
  return vanishes ? 0.0f : highest / magnitude;
}

TESSERA_INLINE __m512i quantise(const ActivationRow& row, int64_t at, __m512 inverse) {
  const __m512 in = _mm512_mul_ps(load_inputs(row, at), inverse);
  const __m512 low = _mm512_max_ps(in, _mm512_set1_ps(-127.0f));
  return _mm512_cvtps_epi32(_mm512_min_ps(low, _mm512_set1_ps(127.0f)));
}

// Thirty-two codes from `at` on, as bytes; adds them to `sum`.
TESSERA_INLINE __m256i quantise_bytes(const ActivationRow& row, int64_t at, __m512 inverse,
                                      __m512i& sum) {
  const __m512i first = quantise(row, at, inverse);
  const __m512i second = quantise(row, at + 16, inverse);
  sum = _mm512_add_epi32(sum, _mm512_add_epi32(first, second));
  return _mm256_set_m128i(_mm512_cvtepi32_epi8(second), _mm512_cvtepi32_epi8(first));
}

void convert_int8(const ActivationRow& row) {
  const __m512 inverse = _mm512_set1_ps(find_scale(row, 127.0f));
  __m512i sum = _mm512_setzero_si512();
  for (int64_t at = 0; at < row.out_bytes; at += 32) {
    store_bytes(row.out + at, quantise_bytes(row, at, inverse, sum), row.out_bytes - at);
  }
  *row.corrections = -128 * _mm512_reduce_add_epi32(sum);
}

void convert_int4(const ActivationRow& row) {
  const __m512 inverse = _mm512_set1_ps(find_scale(row, 127.0f));
  for (int64_t at = 0; at < row.out_bytes; at += 32) {
    __m512i sum = _mm512_setzero_si512();
    store_bytes(row.out + at, quantise_bytes(row, at, inverse, sum), 32);
    row.corrections[at / 32] = -8 * _mm512_reduce_add_epi32(sum);
  }
}

// To the nearest E4M3, which fit into the upper halves.
void convert_fp8(const ActivationRow& row) {
  const __m512 inverse = _mm512_set1_ps(find_scale(row, 448.0f));
  const __m512 shift = _mm512_set1_ps(0x1p14f);
  const __m512i sign_bit = _mm512_set1_epi32(static_cast<int32_t>(0x80000000));
  for (int64_t at = 0; at * 2 < row.out_bytes; at += 16) {
    const __m512 in = _mm512_mul_ps(load_inputs(row, at), inverse);
    const __m512 magnitude = _mm512_min_ps(_mm512_abs_ps(in), _mm512_set1_ps(448.0f));
    const __m512i bits = _mm512_castps_si512(magnitude);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 20), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_and_si512(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7ffff))),
                         _mm512_set1_epi32(-0x100000));
    const __m512 subnormal = _mm512_sub_ps(_mm512_add_ps(magnitude, shift), shift);
    const __mmask16 small = _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(0x1p-6f), _CMP_LT_OQ);
    const __m512i value = _mm512_mask_blend_epi32(small, rounded, _mm512_castps_si512(subnormal));
    const __m512i with_sign =
        _mm512_or_si512(value, _mm512_and_si512(_mm512_castps_si512(in), sign_bit));
    store_bytes(row.out + at * 2, _mm512_cvtepi32_epi16(_mm512_srli_epi32(with_sign, 16)),
                row.out_bytes - at * 2);
  }
}

}  // namespace

namespace avx512 {

constinit const LinearKernels linear_kernels{{
    {convert_f32, kWide<Simd512, Element::f32, 6, 4>, kTall<Simd512, Element::f32, 12, 2>},
    {convert_bf16, kWide<Simd512, Element::bf16, 6, 4>, kTall<Simd512, Element::bf16, 12, 2>},
    {convert_int8, kWide<Simd512, Element::int8, 6, 4>, kTall<Simd512, Element::int8, 12, 2>},
    {convert_int4, kWide<Simd512, Element::int4, 1, 4>, kTall<Simd512, Element::int4, 6, 2>},
    {convert_fp8, kWide<Simd512, Element::fp8, 3, 4>, kTall<Simd512, Element::fp8, 8, 2>},
}};

}  // namespace avx512
}  // namespace tessera
