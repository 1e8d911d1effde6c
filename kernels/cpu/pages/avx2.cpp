#include <immintrin.h>

#include "kernels/cpu/pages/lane_pages.h"

namespace tessera::avx2 {
namespace {

struct Lanes {
  using Floats = __m256;
  using Codes = __m256i;
  static constexpr int kLanes = 8;
  static constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

  static Floats all(float x) { return _mm256_set1_ps(x); }
  static Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  static Floats sub(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
  static Floats div(Floats a, Floats b) { return _mm256_div_ps(a, b); }
  static Floats min(Floats a, Floats b) { return _mm256_min_ps(a, b); }
  static Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
  static float lowest(Floats a) {
    __m128 x = _mm_min_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_min_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_min_ss(x, _mm_movehdup_ps(x)));
  }
  static float highest(Floats a) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
  }

  static Floats load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Floats a) { _mm256_storeu_ps(p, a); }
  static Floats load_f16(const f16* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static Floats load_8_twice_f16(const f16* p) { return load_f16(p); }
  // At least 8 floats are valid, so all lanes are.
  static Floats load_first_f16(const f16* p, int /*valid*/) { return load_f16(p); }
  // Returns: the stored values, as floats.
  static Floats store_f16(Floats a, f16* p) {
    const __m128i halves = _mm256_cvtps_ph(a, kNearest);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), halves);
    return _mm256_cvtph_ps(halves);
  }
  // For a NaN, min returns its second operand, so a NaN becomes the largest value.
  static void store_8_as_f16(const float* in, f16* out) {
    const __m256 below = _mm256_min_ps(_mm256_loadu_ps(in), all(kLargestF16));
    store_f16(_mm256_max_ps(below, all(-kLargestF16)), out);
  }

  static Codes no_codes() { return _mm256_setzero_si256(); }
  static Codes either(Codes a, Codes b) { return _mm256_or_si256(a, b); }
  static Codes shift_left(Codes a, int bits) {
    return _mm256_sll_epi32(a, _mm_cvtsi32_si128(bits));
  }
  static Codes rounded_where_positive(Floats a, Floats scale) {
    const __m256 positive = _mm256_cmp_ps(scale, _mm256_setzero_ps(), _CMP_GT_OQ);
    const __m256 rounded = _mm256_round_ps(a, kNearest);
    return _mm256_cvtps_epi32(_mm256_and_ps(rounded, positive));
  }
  static Codes first_codes(Codes a, int /*valid*/) { return a; }
  static void store_codes(std::byte* p, Codes a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a);
  }
};

}  // namespace

const PageOps kPageOps{LanePages<Lanes>::to_stored_f16, LanePages<Lanes>::encode_tile,
                       encode_sparse};

}  // namespace tessera::avx2
