#include <immintrin.h>

#include "kernels/cpu/sampling/weigh_lanes.h"

namespace tessera::avx2 {
namespace {

struct Lanes {
  static constexpr int64_t kCount = 4;

  static void store(uint64_t* to, __m256i weights) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), weights);
  }

  static __m256i weights(const float* logits, float best, float temperature) {
    const __m128 below = _mm_sub_ps(_mm_set1_ps(best), _mm_loadu_ps(logits));
    const __m128 octaves =
        _mm_mul_ps(_mm_div_ps(below, _mm_set1_ps(temperature)), _mm_set1_ps(kLog2E));
    const __m128 scaled = _mm_mul_ps(_mm_min_ps(octaves, _mm_set1_ps(kTooManyOctaves)),
                                     _mm_set1_ps(static_cast<float>(1 << kFractionBits)));
    const __m256i fixed = _mm256_cvtepu32_epi64(_mm_cvttps_epi32(scaled));
    const __m256i fraction = _mm256_slli_epi64(
        _mm256_and_si256(fixed, _mm256_set1_epi64x((1 << kFractionBits) - 1)), 32 - kFractionBits);
    const auto times_fraction = [fraction](__m256i x) {
      return _mm256_srli_epi64(_mm256_mul_epu32(fraction, x), 32);
    };
    __m256i sum = _mm256_set1_epi64x(kPowerPolynomial[5]);
    for (int i = 4; i >= 0; --i) {
      sum = _mm256_sub_epi64(_mm256_set1_epi64x(kPowerPolynomial[i]), times_fraction(sum));
    }
    const __m256i power = _mm256_sub_epi64(_mm256_set1_epi64x(int64_t{1} << 31),
                                           _mm256_srli_epi64(times_fraction(sum), 1));
    return _mm256_srlv_epi64(_mm256_slli_epi64(power, kWeightBits - 31),
                             _mm256_srli_epi64(fixed, kFractionBits));
  }
};

}  // namespace

void weigh(const WeighArgs& args) {
  weigh_lanes<Lanes>(args);
}

}  // namespace tessera::avx2
