#include <immintrin.h>

#include "kernels/cpu/pages/lane_pages.h"

namespace tessera::avx512 {
namespace {

struct Lanes {
  using Floats = __m512;
  using Codes = __m512i;
  static constexpr int kLanes = 16;
  static constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

  static Floats all(float x) { return _mm512_set1_ps(x); }
  static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  static Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
  static Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
  static Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
  static Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
  static float lowest(Floats a) { return _mm512_reduce_min_ps(a); }
  static float highest(Floats a) { return _mm512_reduce_max_ps(a); }

  static Floats load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Floats a) { _mm512_storeu_ps(p, a); }
  static __m128i eight(const f16* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
  static Floats load_f16(const f16* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Floats load_8_twice_f16(const f16* p) {
    return _mm512_cvtph_ps(_mm256_set_m128i(eight(p), eight(p)));
  }
  // 8 floats are valid, or all. Other lanes become 0.
  static Floats load_first_f16(const f16* p, int valid) {
    return valid >= kLanes ? load_f16(p) : _mm512_cvtph_ps(_mm256_zextsi128_si256(eight(p)));
  }
  // Returns: the stored values, as floats.
  static Floats store_f16(Floats a, f16* p) {
    const __m256i halves = _mm512_cvtps_ph(a, kNearest);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), halves);
    return _mm512_cvtph_ps(halves);
  }
  // For a NaN, min returns its second operand, so a NaN becomes the largest value.
  static void store_8_as_f16(const float* in, f16* out) {
    const __m256 largest = _mm256_set1_ps(kLargestF16);
    const __m256 below = _mm256_min_ps(_mm256_loadu_ps(in), largest);
    const __m256 within = _mm256_max_ps(below, _mm256_set1_ps(-kLargestF16));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_cvtps_ph(within, kNearest));
  }

  static Codes no_codes() { return _mm512_setzero_si512(); }
  static Codes either(Codes a, Codes b) { return _mm512_or_si512(a, b); }
  static Codes shift_left(Codes a, int bits) {
    return _mm512_sll_epi32(a, _mm_cvtsi32_si128(bits));
  }
  static Codes rounded_where_positive(Floats a, Floats scale) {
    const __mmask16 positive = _mm512_cmp_ps_mask(scale, _mm512_setzero_ps(), _CMP_GT_OQ);
    return _mm512_maskz_cvt_roundps_epi32(positive, a, kNearest);
  }
  static Codes first_codes(Codes a, int valid) {
    return valid >= kLanes ? a : _mm512_maskz_mov_epi32(0xff, a);
  }
  static void store_codes(std::byte* p, Codes a) { _mm512_storeu_si512(p, a); }
};

}  // namespace

const PageOps kPageOps{LanePages<Lanes>::to_stored_f16, LanePages<Lanes>::encode_tile,
                       encode_sparse};

}  // namespace tessera::avx512
