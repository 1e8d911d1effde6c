#include <immintrin.h>

#include <limits>

#include "kernels/cpu/sampling/row_passes_lanes.h"

namespace tessera::avx2 {
namespace {

struct Lanes {
  struct Highest {
    __m256 all = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
    __m256 allowed = all;
    __m256i magnitude = _mm256_setzero_si256();  // the highest bits without a sign

    void add(const float* logits, uint32_t word) {
      const __m256i lane_bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
      const __m256 forbidden = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
      for (int i = 0; i < 4; ++i) {
        const __m256 x = _mm256_loadu_ps(logits + 8 * i);
        const __m256i bits =
            _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(word >> (8 * i))), lane_bit);
        const __m256 where = _mm256_castsi256_ps(_mm256_cmpeq_epi32(bits, lane_bit));
        all = _mm256_max_ps(all, x);
        allowed = _mm256_max_ps(allowed, _mm256_blendv_ps(forbidden, x, where));
        magnitude = _mm256_max_epu32(
            magnitude, _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff)));
      }
    }
    tessera::Highest total() const {
      float of_all[8], of_allowed[8];
      uint32_t of_magnitude[8];
      _mm256_storeu_ps(of_all, all);
      _mm256_storeu_ps(of_allowed, allowed);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(of_magnitude), magnitude);
      tessera::Highest total{of_all[0], of_allowed[0]};
      for (int i = 0; i < 8; ++i) {
        total.of_all = of_all[i] > total.of_all ? of_all[i] : total.of_all;
        total.of_allowed = of_allowed[i] > total.of_allowed ? of_allowed[i] : total.of_allowed;
        total.finite = total.finite && of_magnitude[i] < 0x7f800000u;
      }
      return total;
    }
  };

  static uint32_t at_least(const float* logits, float least) {
    const __m256 bound = _mm256_set1_ps(least);
    uint32_t bits = 0;
    for (int i = 0; i < 4; ++i) {
      const __m256 is = _mm256_cmp_ps(_mm256_loadu_ps(logits + 8 * i), bound, _CMP_GE_OQ);
      bits |= static_cast<uint32_t>(_mm256_movemask_ps(is)) << (8 * i);
    }
    return bits;
  }

  struct Weights {
    Weights(float best, float temperature)
        : best_(_mm_set1_ps(best)), temperature_(_mm_set1_ps(temperature)) {}

    void add(const float* logits, uint32_t word) {
      const __m256i lane_bit = _mm256_setr_epi64x(1, 2, 4, 8);
      for (int i = 0; i < 8; ++i) {
        const uint32_t bits = word >> (4 * i) & 0xf;
        if (bits != 0) {
          const __m256i set = _mm256_and_si256(_mm256_set1_epi64x(bits), lane_bit);
          const __m256i where = _mm256_cmpeq_epi64(set, lane_bit);
          sum_ = _mm256_add_epi64(sum_, _mm256_and_si256(where, weights(logits + 4 * i)));
        }
      }
    }
    uint64_t total() const {
      uint64_t sums[4];
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums), sum_);
      return sums[0] + sums[1] + sums[2] + sums[3];
    }

   private:
    __m256i weights(const float* logits) const {
      const __m128 below = _mm_sub_ps(best_, _mm_loadu_ps(logits));
      const __m128 octaves = _mm_mul_ps(_mm_div_ps(below, temperature_), _mm_set1_ps(kLog2E));
      const __m128 scaled = _mm_mul_ps(_mm_min_ps(octaves, _mm_set1_ps(kTooManyOctaves)),
                                       _mm_set1_ps(static_cast<float>(1 << kFractionBits)));
      const __m256i fixed = _mm256_cvtepu32_epi64(_mm_cvttps_epi32(scaled));
      const __m256i fraction =
          _mm256_slli_epi64(_mm256_and_si256(fixed, _mm256_set1_epi64x((1 << kFractionBits) - 1)),
                            32 - kFractionBits);
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

    __m256i sum_ = _mm256_setzero_si256();
    __m128 best_;
    __m128 temperature_;
  };
};

}  // namespace

const RowPasses kRowPasses = RowPassesOf<Lanes>::all();

}  // namespace tessera::avx2
