#pragma once

#include <immintrin.h>

#include <cstdint>

namespace tessera::avx512 {

// Vector of f32 for the kernel templates of this folder. Only files compiled with the flags of the
// instruction set include this.
struct Lanes {
  static constexpr int kLanes = 16;
  static constexpr int kKeyTilesAtOnce = 4;  // key tiles in one pass over scores
  static constexpr int kValueVectors = 4;    // vectors of channels in a pass over values

  __m512 v;

  static Lanes zero() { return {_mm512_setzero_ps()}; }
  static Lanes all(float x) { return {_mm512_set1_ps(x)}; }
  static Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Lanes load_f16(const void* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
  }
  // An e4m3's bits, moved to the places of an f16, are 2^-8 of its value, also if it is subnormal.
  static Lanes load_e4m3(const void* p) {
    const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    const __m256i halves =
        _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(static_cast<short>(0xbfff)));
    return {_mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(256))};
  }
  static Lanes load_half_e4m3(const void* p) {
    const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
    const __m128i halves =
        _mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16(static_cast<short>(0xbfff)));
    return {_mm512_zextps256_ps512(_mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_set1_ps(256)))};
  }
  static Lanes load_i8(const void* p) {
    return {
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))))};
  }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store_f16(void* p) const {
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }

  // Loads or stores the first 8 lanes. A load sets the others to 0.
  static Lanes load_half(const float* p) { return {_mm512_zextps256_ps512(_mm256_loadu_ps(p))}; }
  static Lanes load_half_f16(const void* p) {
    return {
        _mm512_zextps256_ps512(_mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p))))};
  }
  static Lanes load_half_i8(const void* p) {
    return {
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))))};
  }
  void store_half(float* p) const { _mm256_storeu_ps(p, _mm512_castps512_ps256(v)); }

  friend Lanes operator+(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
  friend Lanes operator-(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
  friend Lanes operator*(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
  friend Lanes operator/(Lanes a, Lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
  static Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  // A NaN in `b` survives, a NaN in `a` does not: pass the bound first.
  static Lanes min(Lanes a, Lanes b) { return {_mm512_min_ps(a.v, b.v)}; }
  static Lanes max(Lanes a, Lanes b) { return {_mm512_max_ps(a.v, b.v)}; }
  static Lanes round(Lanes a) {
    return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  // Returns: a * 2^exponent for an integer exponent in [-126, 127].
  static Lanes scale(Lanes a, Lanes exponent) { return {_mm512_scalef_ps(a.v, exponent.v)}; }

  // Returns: lane i if bit i of `bits` is set, else lane i of `other`.
  Lanes where(uint32_t bits, Lanes other) const {
    return {_mm512_mask_blend_ps(static_cast<__mmask16>(bits), other.v, v)};
  }
  Lanes reversed() const {
    const __m512i order = _mm512_setr_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    return {_mm512_permutexvar_ps(order, v)};
  }
  // p[2 i] += lane i. Elements in between are unchanged and need not be floats.
  void add_to_even(float* p) const {
    constexpr __mmask16 kEven = 0x5555;
    const __m512 first = _mm512_loadu_ps(p);
    const __m512 second = _mm512_loadu_ps(p + 16);
    const __m512 high = _mm512_castps256_ps512(_mm512_extractf32x8_ps(v, 1));
    _mm512_storeu_ps(p, _mm512_mask_add_ps(first, kEven, first, _mm512_maskz_expand_ps(kEven, v)));
    _mm512_storeu_ps(
        p + 16, _mm512_mask_add_ps(second, kEven, second, _mm512_maskz_expand_ps(kEven, high)));
  }
  float first() const { return _mm512_cvtss_f32(v); }
  float highest() const { return _mm512_reduce_max_ps(v); }
  // Returns: the maximum lane of each of 4 vectors, in the first 4 lanes, in about the time of one.
  static Lanes highest(const Lanes (&of)[4]) {
    const __m512 ab =
        _mm512_max_ps(_mm512_unpacklo_ps(of[0].v, of[1].v), _mm512_unpackhi_ps(of[0].v, of[1].v));
    const __m512 cd =
        _mm512_max_ps(_mm512_unpacklo_ps(of[2].v, of[3].v), _mm512_unpackhi_ps(of[2].v, of[3].v));
    const __m512 abcd =
        _mm512_max_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    const __m256 m8 = _mm256_max_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps(abcd, 1));
    return {_mm512_zextps128_ps512(
        _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1)))};
  }
  // A quarter is 4 neighbouring lanes.
  // Returns: sums of each quarter of 4 vectors; lane i of a quarter is the sum of vector i.
  static Lanes quarter_sums(const Lanes (&of)[4]) {
    const __m512 ab =
        _mm512_add_ps(_mm512_unpacklo_ps(of[0].v, of[1].v), _mm512_unpackhi_ps(of[0].v, of[1].v));
    const __m512 cd =
        _mm512_add_ps(_mm512_unpacklo_ps(of[2].v, of[3].v), _mm512_unpackhi_ps(of[2].v, of[3].v));
    return {_mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee))};
  }
  void store_quarters(float* p, int64_t apart) const {
    _mm_storeu_ps(p, _mm512_castps512_ps128(v));
    _mm_storeu_ps(p + apart, _mm512_extractf32x4_ps(v, 1));
    _mm_storeu_ps(p + 2 * apart, _mm512_extractf32x4_ps(v, 2));
    _mm_storeu_ps(p + 3 * apart, _mm512_extractf32x4_ps(v, 3));
  }
  // Loads or stores the first 4 lanes. A load sets the others to 0.
  static Lanes load_4(const float* p) { return {_mm512_zextps128_ps512(_mm_loadu_ps(p))}; }
  void store_4(float* p) const { _mm_storeu_ps(p, _mm512_castps512_ps128(v)); }

  // Sum of all lanes in a fixed order: halves first, then quarters, and so on.
  float sum() const {
    const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
  }
};

}  // namespace tessera::avx512
