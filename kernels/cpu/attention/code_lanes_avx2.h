#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention/lanes_avx2.h"

namespace tessera::avx2 {

// Lines of codes as the kernel templates of this folder see them: a vector is half a line. The
// product of bytes saturates, so codes are widened and numbers that meet them stay 16 bits wide;
// both go by even and odd places, which needs a shift and a mask alone.
struct CodeLanes {
  using Floats = Lanes;
  static constexpr int kStep = 4;         // pairs a pass serves
  static constexpr int kLineVectors = 2;  // of a line
  // Key tiles, or blocks of 16 channels, that a pass keeps sums of.
  static constexpr int at_once(int pairs) { return pairs <= 2 ? 2 : 1; }

  struct Codes {
    __m256i even;
    __m256i odd;
  };

  template <int kBits, int kSubLine>
  static Codes sub_line(__m256i line) {
    const __m256i mask = _mm256_set1_epi16((1 << kBits) - 1);
    const __m256i even = kSubLine == 0 ? line : _mm256_srli_epi16(line, kSubLine * kBits);
    const __m256i odd = _mm256_srli_epi16(line, 8 + kSubLine * kBits);
    constexpr bool kTop = (kSubLine + 1) * kBits == 8;  // nothing stands above
    return {_mm256_and_si256(even, mask), kTop ? odd : _mm256_and_si256(odd, mask)};
  }
  static __m256i load(const std::byte* line) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(line));
  }

  // 4 numbers, for all lanes.
  struct Factor {
    __m256i even;
    __m256i odd;
  };
  static Factor factor(const int32_t* even, const int32_t* odd) {
    return {_mm256_set1_epi32(*even), _mm256_set1_epi32(*odd)};
  }

  struct Sum {
    __m256i all;

    static Sum zero() { return {_mm256_setzero_si256()}; }
    void add(Codes codes, Factor by) {
      all = _mm256_add_epi32(all, _mm256_madd_epi16(codes.even, by.even));
      all = _mm256_add_epi32(all, _mm256_madd_epi16(codes.odd, by.odd));
    }
    Lanes total() const { return {_mm256_cvtepi32_ps(all)}; }
  };

  // 64 numbers times `inverse`, rounded to integers: of each 4 the first and third go to `even`.
  static void pack(const Lanes* numbers, float inverse, int32_t* even, int32_t* odd) {
    const __m256 by = _mm256_set1_ps(inverse);
    const __m256i order = _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7);
    for (int i = 0; i < 4; ++i) {
      const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(numbers[2 * i].v, by));
      const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(numbers[2 * i + 1].v, by));
      const __m256i n =
          _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(_mm256_packs_epi32(a, b), 0xd8), 0xd8);
      const __m256i sorted = _mm256_permutevar8x32_epi32(n, order);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(even + 4 * i), _mm256_castsi256_si128(sorted));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(odd + 4 * i),
                       _mm256_extracti128_si256(sorted, 1));
    }
  }
};

}  // namespace tessera::avx2
