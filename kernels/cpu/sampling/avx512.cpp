#include <immintrin.h>

#include "kernels/cpu/sampling/weigh_lanes.h"

namespace tessera::avx512 {
namespace {

struct Lanes {
  static constexpr int64_t kCount = 8;

  static void store(uint64_t* to, __m512i weights) { _mm512_storeu_si512(to, weights); }

  static __m512i weights(const float* logits, float best, float temperature) {
    const __m256 below = _mm256_sub_ps(_mm256_set1_ps(best), _mm256_loadu_ps(logits));
    const __m256 octaves =
        _mm256_mul_ps(_mm256_div_ps(below, _mm256_set1_ps(temperature)), _mm256_set1_ps(kLog2E));
    const __m256 scaled = _mm256_mul_ps(_mm256_min_ps(octaves, _mm256_set1_ps(kTooManyOctaves)),
                                        _mm256_set1_ps(static_cast<float>(1 << kFractionBits)));
    const __m512i fixed = _mm512_cvtepu32_epi64(_mm256_cvttps_epi32(scaled));
    const __m512i fraction = _mm512_slli_epi64(
        _mm512_and_si512(fixed, _mm512_set1_epi64((1 << kFractionBits) - 1)), 32 - kFractionBits);
    const auto times_fraction = [fraction](__m512i x) {
      return _mm512_srli_epi64(_mm512_mul_epu32(fraction, x), 32);
    };
    __m512i sum = _mm512_set1_epi64(kPowerPolynomial[5]);
    for (int i = 4; i >= 0; --i) {
      sum = _mm512_sub_epi64(_mm512_set1_epi64(kPowerPolynomial[i]), times_fraction(sum));
    }
    const __m512i power = _mm512_sub_epi64(_mm512_set1_epi64(int64_t{1} << 31),
                                           _mm512_srli_epi64(times_fraction(sum), 1));
    return _mm512_srlv_epi64(_mm512_slli_epi64(power, kWeightBits - 31),
                             _mm512_srli_epi64(fixed, kFractionBits));
  }
};

}  // namespace

void weigh(const WeighArgs& args) {
  weigh_lanes<Lanes>(args);
}

}  // namespace tessera::avx512
