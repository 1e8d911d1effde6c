#pragma once

#include <immintrin.h>

#include <cstdint>

namespace tessera::avx2 {

// Vector of f32 for the kernel templates of this folder. Only files compiled with the flags of the
// instruction set include this.
struct Lanes {
  static constexpr int kLanes = 8;
  static constexpr int kKeyTilesAtOnce = 1;  // key tiles in one pass over scores
  static constexpr int kValueVectors = 2;    // vectors of channels in a pass over values

  __m256 v;

  static Lanes zero() { return {_mm256_setzero_ps()}; }
  static Lanes all(float x) { return {_mm256_set1_ps(x)}; }
  static Lanes load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static Lanes load_f16(const void* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
  }
  // An e4m3's bits, moved to the places of an f16, are 2^-8 of its value, also if it is subnormal.
  static Lanes load_e4m3(const void* p) {
    const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
    const __m128i halves =
        _mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16(static_cast<short>(0xbfff)));
    return {_mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_set1_ps(256))};
  }
  static Lanes load_i8(const void* p) {
    return {
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))))};
  }
  void store(float* p) const { _mm256_storeu_ps(p, v); }
  void store_f16(void* p) const {
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }

  // The first 8 lanes are all lanes.
  static Lanes load_half(const float* p) { return load(p); }
  void store_half(float* p) const { store(p); }

  friend Lanes operator+(Lanes a, Lanes b) { return {_mm256_add_ps(a.v, b.v)}; }
  friend Lanes operator-(Lanes a, Lanes b) { return {_mm256_sub_ps(a.v, b.v)}; }
  friend Lanes operator*(Lanes a, Lanes b) { return {_mm256_mul_ps(a.v, b.v)}; }
  friend Lanes operator/(Lanes a, Lanes b) { return {_mm256_div_ps(a.v, b.v)}; }
  static Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
  // A NaN in `b` survives, a NaN in `a` does not: pass the bound first.
  static Lanes min(Lanes a, Lanes b) { return {_mm256_min_ps(a.v, b.v)}; }
  static Lanes max(Lanes a, Lanes b) { return {_mm256_max_ps(a.v, b.v)}; }
  static Lanes round(Lanes a) {
    return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  // Returns: a * 2^exponent for an integer exponent in [-126, 127].
  static Lanes scale(Lanes a, Lanes exponent) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(exponent.v), _mm256_set1_epi32(127));
    return {_mm256_mul_ps(a.v, _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23)))};
  }

  // Returns: lane i if bit i of `bits` is set, else lane i of `other`.
  Lanes where(uint32_t bits, Lanes other) const {
    const __m256i lane_bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), lane_bit);
    const __m256i mask = _mm256_cmpeq_epi32(set, lane_bit);
    return {_mm256_blendv_ps(other.v, v, _mm256_castsi256_ps(mask))};
  }
  Lanes reversed() const {
    return {_mm256_permutevar8x32_ps(v, _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0))};
  }
  // p[2 i] += lane i. Elements in between are unchanged and need not be floats.
  void add_to_even(float* p) const {
    const __m256i low = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    const __m256i high = _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7);
    const __m256 first = _mm256_loadu_ps(p);
    const __m256 second = _mm256_loadu_ps(p + 8);
    const __m256 to_first = _mm256_add_ps(first, _mm256_permutevar8x32_ps(v, low));
    const __m256 to_second = _mm256_add_ps(second, _mm256_permutevar8x32_ps(v, high));
    _mm256_storeu_ps(p, _mm256_blend_ps(first, to_first, 0x55));
    _mm256_storeu_ps(p + 8, _mm256_blend_ps(second, to_second, 0x55));
  }
  float first() const { return _mm256_cvtss_f32(v); }
  float highest() const {
    const __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
    return _mm_cvtss_f32(_mm_max_ss(m2, _mm_movehdup_ps(m2)));
  }
  // Returns: the maximum lane of each of 4 vectors, in the first 4 lanes, in about the time of one.
  static Lanes highest(const Lanes (&of)[4]) {
    const __m256 ab =
        _mm256_max_ps(_mm256_unpacklo_ps(of[0].v, of[1].v), _mm256_unpackhi_ps(of[0].v, of[1].v));
    const __m256 cd =
        _mm256_max_ps(_mm256_unpacklo_ps(of[2].v, of[3].v), _mm256_unpackhi_ps(of[2].v, of[3].v));
    const __m256 abcd =
        _mm256_max_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    return {_mm256_zextps128_ps256(
        _mm_max_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1)))};
  }
  // A quarter is 4 neighbouring lanes, as in AVX-512.
  // Returns: sums of each quarter of 4 vectors; lane i of a quarter is the sum of vector i.
  static Lanes quarter_sums(const Lanes (&of)[4]) {
    const __m256 ab =
        _mm256_add_ps(_mm256_unpacklo_ps(of[0].v, of[1].v), _mm256_unpackhi_ps(of[0].v, of[1].v));
    const __m256 cd =
        _mm256_add_ps(_mm256_unpacklo_ps(of[2].v, of[3].v), _mm256_unpackhi_ps(of[2].v, of[3].v));
    return {_mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee))};
  }
  void store_quarters(float* p, int64_t apart) const {
    _mm_storeu_ps(p, _mm256_castps256_ps128(v));
    _mm_storeu_ps(p + apart, _mm256_extractf128_ps(v, 1));
  }
  // Loads or stores the first 4 lanes. A load sets the others to 0.
  static Lanes load_4(const float* p) { return {_mm256_zextps128_ps256(_mm_loadu_ps(p))}; }
  void store_4(float* p) const { _mm_storeu_ps(p, _mm256_castps256_ps128(v)); }

  // Sum of all lanes in a fixed order: halves first, then quarters, and so on.
  float sum() const {
    const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
  }
};

}  // namespace tessera::avx2
