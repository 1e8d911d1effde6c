#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/simd/lanes_avx512.h"
#include "kernels/kv/codebook.h"

namespace tessera::avx512 {

// Vector type for lines of codes, for the kernel templates of this folder. A vector is a whole
// line. A number that is multiplied by codes is two bytes: 256 * high + low.
struct CodeLanes {
  using Floats = Lanes;
  static constexpr int kStep = 4;         // pairs in a pass
  static constexpr int kLineVectors = 1;  // vectors in a line
  // Returns: number of key tiles, or blocks of 16 channels, whose sums one pass keeps. They hide
  // the latency of a dot product and fit into the registers.
  static constexpr int at_once(int pairs) { return pairs <= 2 ? 4 : 2; }

  struct Codes {
    __m512i bytes;
  };

  template <int kBits, int kSubLine>
  static Codes sub_line(__m512i line) {
    if constexpr (kBits == 8) {
      return {line};
    } else {
      const __m512i mask = _mm512_set1_epi8((1 << kBits) - 1);
      return {
          _mm512_and_si512(kSubLine == 0 ? line : _mm512_srli_epi16(line, kSubLine * kBits), mask)};
    }
  }
  static __m512i load(const std::byte* line) { return _mm512_load_si512(line); }

  // Sub-line kSubLine of a unit of three lines of codes of 3 bits, as multipliers. The look-up
  // takes the lowest 6 bits of a byte, and its table repeats, so the bits above a code stay.
  template <int kSubLine>
  static Codes codebook_sub_line(__m512i line_0, __m512i line_1, __m512i line_2) {
    static constexpr CodebookTable<64> kTable;
    const __m512i lines[] = {line_0, line_1, line_2};
    __m512i codes;
    if constexpr (kSubLine < 6) {
      const __m512i line = lines[kSubLine / 2];
      codes = kSubLine % 2 == 0 ? line : _mm512_srli_epi16(line, 3);
    } else {
      const __m512i low = _mm512_srli_epi16(lines[kSubLine - 6], 6);
      const __m512i high = _mm512_srli_epi16(line_2, kSubLine - 2);
      codes = _mm512_ternarylogic_epi32(_mm512_set1_epi8(3), low, high, 0xca);  // 3 ? low : high
    }
    return {_mm512_permutexvar_epi8(codes, _mm512_load_si512(kTable.of))};
  }

  // Sub-line kSubLine of a unit of three lines of codes of 6 bits.
  template <int kSubLine>
  static Codes six_bit_sub_line(__m512i line_0, __m512i line_1, __m512i line_2) {
    const __m512i lines[] = {line_0, line_1, line_2};
    __m512i codes;
    if constexpr (kSubLine < 3) {
      codes = lines[kSubLine];
    } else {
      constexpr int kSelect = 0xca;  // of the mask's ones the second operand, else the third
      const __m512i above =
          _mm512_ternarylogic_epi32(_mm512_set1_epi8(0x0c), _mm512_srli_epi16(line_1, 4),
                                    _mm512_srli_epi16(line_2, 2), kSelect);
      codes = _mm512_ternarylogic_epi32(_mm512_set1_epi8(0x03), _mm512_srli_epi16(line_0, 6), above,
                                        kSelect);
    }
    return {_mm512_and_si512(codes, _mm512_set1_epi8(63))};
  }

  // 4 numbers, broadcast to all lanes.
  struct Factor {
    __m512i high;
    __m512i low;
  };
  static Factor factor(const int32_t* high, const int32_t* low) {
    return {_mm512_set1_epi32(*high), _mm512_set1_epi32(*low)};
  }

  struct Sum {
    __m512i high;
    __m512i low;

    static Sum zero() { return {_mm512_setzero_si512(), _mm512_setzero_si512()}; }
    void add(Codes codes, Factor by) {
      high = _mm512_dpbusd_epi32(high, codes.bytes, by.high);
      low = _mm512_dpbusd_epi32(low, codes.bytes, by.low);
    }
    Lanes total() const {
      return {_mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 8), low))};
    }
  };

  // Writes 64 numbers times `inverse`, rounded to integers, as 16 times 4 high and 16 times 4 low
  // bytes. Adding 128 before the bytes are taken rounds the high bytes. The low bytes subtract it
  // again.
  static void pack(const Lanes* numbers, float inverse, int32_t* high, int32_t* low) {
    const __m512i bytes = _mm512_set_epi8(  // byte 0 of the lanes of two vectors, then byte 1
        125, 121, 117, 113, 109, 105, 101, 97, 93, 89, 85, 81, 77, 73, 69, 65,  //
        61, 57, 53, 49, 45, 41, 37, 33, 29, 25, 21, 17, 13, 9, 5, 1,            //
        124, 120, 116, 112, 108, 104, 100, 96, 92, 88, 84, 80, 76, 72, 68, 64,  //
        60, 56, 52, 48, 44, 40, 36, 32, 28, 24, 20, 16, 12, 8, 4, 0);
    const __m512 by = _mm512_set1_ps(inverse);
    __m512i n[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      n[i] = _mm512_add_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(numbers[i].v, by)),
                              _mm512_set1_epi32(128));
    }
    const __m512i a = _mm512_permutex2var_epi8(n[0], bytes, n[1]);
    const __m512i b = _mm512_permutex2var_epi8(n[2], bytes, n[3]);
    _mm512_storeu_si512(high, _mm512_shuffle_i64x2(a, b, 0xee));
    _mm512_storeu_si512(low,
                        _mm512_xor_si512(_mm512_shuffle_i64x2(a, b, 0x44), _mm512_set1_epi8(-128)));
  }
};

}  // namespace tessera::avx512
