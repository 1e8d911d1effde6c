#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/simd/lanes_avx2.h"
#include "kernels/kv/codebook.h"

namespace tessera::avx2 {

// Vector type for lines of codes, for the kernel templates of this folder. A vector is half a line.
// AVX2's product of bytes saturates, so codes are widened to 16 bits and multiplied by 16-bit
// numbers. Both are separated into even and odd places, which needs only a shift and a mask.
struct CodeLanes {
  using Floats = Lanes;
  static constexpr int kStep = 4;         // pairs in a pass
  static constexpr int kLineVectors = 2;  // vectors in a line
  // Returns: number of key tiles, or blocks of 16 channels, whose sums one pass keeps.
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
    constexpr bool kTop = (kSubLine + 1) * kBits == 8;  // no bits above
    return {_mm256_and_si256(even, mask), kTop ? odd : _mm256_and_si256(odd, mask)};
  }
  // Sub-line kSubLine of a unit of three lines of codes of 3 bits, as multipliers. The look-up
  // takes the lowest 4 bits of a byte whose highest bit is 0, and its table repeats.
  template <int kSubLine>
  static Codes codebook_sub_line(__m256i line_0, __m256i line_1, __m256i line_2) {
    static constexpr CodebookTable<32> kTable;
    const __m256i lines[] = {line_0, line_1, line_2};
    __m256i codes;
    if constexpr (kSubLine < 6) {
      const __m256i line = lines[kSubLine / 2];
      codes = _mm256_and_si256(kSubLine % 2 == 0 ? line : _mm256_srli_epi16(line, 3),
                               _mm256_set1_epi8(7));
    } else {
      const __m256i low = _mm256_srli_epi16(lines[kSubLine - 6], 6);
      const __m256i high = _mm256_srli_epi16(line_2, kSubLine - 2);
      codes = _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi8(3)),
                              _mm256_and_si256(high, _mm256_set1_epi8(4)));
    }
    const __m256i table = _mm256_load_si256(reinterpret_cast<const __m256i*>(kTable.of));
    const __m256i multipliers = _mm256_shuffle_epi8(table, codes);
    return {_mm256_and_si256(multipliers, _mm256_set1_epi16(255)),
            _mm256_srli_epi16(multipliers, 8)};
  }
  // Sub-line kSubLine of a unit of three lines of codes of 6 bits.
  template <int kSubLine>
  static Codes six_bit_sub_line(__m256i line_0, __m256i line_1, __m256i line_2) {
    const __m256i lines[] = {line_0, line_1, line_2};
    if constexpr (kSubLine < 3) {
      const __m256i mask = _mm256_set1_epi16(63);
      return {_mm256_and_si256(lines[kSubLine], mask),
              _mm256_and_si256(_mm256_srli_epi16(lines[kSubLine], 8), mask)};
    } else {
      const auto two_bits = [](__m256i line, int shift, char mask) {
        return _mm256_and_si256(_mm256_srli_epi16(line, shift), _mm256_set1_epi8(mask));
      };
      const __m256i codes =
          _mm256_or_si256(_mm256_or_si256(two_bits(line_0, 6, 0x03), two_bits(line_1, 4, 0x0c)),
                          two_bits(line_2, 2, 0x30));
      return {_mm256_and_si256(codes, _mm256_set1_epi16(255)), _mm256_srli_epi16(codes, 8)};
    }
  }
  static __m256i load(const std::byte* line) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(line));
  }

  // 4 numbers, broadcast to all lanes.
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

  // Writes 64 numbers times `inverse`, rounded to integers. The first and third of each 4 go to
  // `even`, the others to `odd`.
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
