#pragma once

#include <immintrin.h>

#include "kernels/cpu/linear/tile.h"

// The Simd type of AVX-512, for files compiled for it: of an anonymous namespace, as tile.h asks.
namespace tessera {
namespace {

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
};

}  // namespace
}  // namespace tessera
