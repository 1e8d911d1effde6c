#include <immintrin.h>

#include <limits>

#include "kernels/cpu/sampling/row_passes_lanes.h"

namespace tessera::avx512 {
namespace {

struct Lanes {
  struct Highest {
    __m512 all = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    __m512 allowed = all;
    __m512i magnitude = _mm512_setzero_si512();  // the highest bits without a sign

    void add(const float* logits, uint32_t word) {
      for (int i = 0; i < 2; ++i) {
        const __m512 x = _mm512_loadu_ps(logits + 16 * i);
        const auto bits = static_cast<__mmask16>(word >> (16 * i));
        all = _mm512_max_ps(all, x);
        allowed = _mm512_mask_max_ps(allowed, bits, allowed, x);
        magnitude = _mm512_max_epu32(
            magnitude, _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)));
      }
    }
    tessera::Highest total() const {
      return {.of_all = _mm512_reduce_max_ps(all),
              .of_allowed = _mm512_reduce_max_ps(allowed),
              .finite = _mm512_reduce_max_epu32(magnitude) < 0x7f800000u};
    }
  };

  static uint32_t at_least(const float* logits, float least) {
    const __m512 bound = _mm512_set1_ps(least);
    const uint32_t low = _mm512_cmp_ps_mask(_mm512_loadu_ps(logits), bound, _CMP_GE_OQ);
    const uint32_t high = _mm512_cmp_ps_mask(_mm512_loadu_ps(logits + 16), bound, _CMP_GE_OQ);
    return low | high << 16;
  }

  struct Weights {
    Weights(float best, float temperature)
        : best_(_mm256_set1_ps(best)), temperature_(_mm256_set1_ps(temperature)) {}

    void add(const float* logits, uint32_t word) {
      for (int i = 0; i < 4; ++i) {
        const auto bits = static_cast<__mmask8>(word >> (8 * i));
        if (bits != 0) {
          sum_ = _mm512_mask_add_epi64(sum_, bits, sum_, weights(logits + 8 * i));
        }
      }
    }
    uint64_t total() const { return static_cast<uint64_t>(_mm512_reduce_add_epi64(sum_)); }

   private:
    __m512i weights(const float* logits) const {
      const __m256 below = _mm256_sub_ps(best_, _mm256_loadu_ps(logits));
      const __m256 octaves =
          _mm256_mul_ps(_mm256_div_ps(below, temperature_), _mm256_set1_ps(kLog2E));
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

    __m512i sum_ = _mm512_setzero_si512();
    __m256 best_;
    __m256 temperature_;
  };
};

}  // namespace

const RowPasses kRowPasses = RowPassesOf<Lanes>::all();

}  // namespace tessera::avx512
