#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention/lanes_avx512.h"

namespace tessera::avx512 {

// Sparse tokens as the kernel templates of this folder see them: AVX-512 VBMI2 expands 32 words or
// 64 bytes by a bitmap in one instruction.
struct SparseLanes {
  using Floats = Lanes;
  static constexpr int kStep = 4;  // pairs a pass over keys serves

  // `words` words of a bitmap, 64 channels each: f16 from `kept` to their channels, 0 elsewhere.
  static void expand_halves(const std::byte* kept, const std::byte* bitmap, int words,
                            std::byte* out) {
    for (int i = 0; i < 2 * words; ++i, out += 64) {
      uint32_t bits;
      __builtin_memcpy(&bits, bitmap + 4 * i, sizeof(bits));
      const __m512i packed = _mm512_loadu_si512(kept);
      _mm512_storeu_si512(out, _mm512_maskz_expand_epi16(bits, packed));
      kept += 2 * __builtin_popcount(bits);
    }
  }
  // The same for bytes.
  static void expand_bytes(const std::byte* kept, const std::byte* bitmap, int words,
                           std::byte* out) {
    for (int i = 0; i < words; ++i, out += 64) {
      uint64_t bits;
      __builtin_memcpy(&bits, bitmap + 8 * i, sizeof(bits));
      const __m512i packed = _mm512_loadu_si512(kept);
      _mm512_storeu_si512(out, _mm512_maskz_expand_epi8(bits, packed));
      kept += __builtin_popcountll(bits);
    }
  }
  // 64 codes of 4 bits, the lower half of a byte first, as bytes.
  static void widen_64(const std::byte* codes, std::byte* out) {
    const __m512i words =
        _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
    const __m512i halves = _mm512_or_si512(words, _mm512_slli_epi16(words, 4));
    const __m512i sign = _mm512_set1_epi8(8);
    const __m512i bytes = _mm512_and_si512(halves, _mm512_set1_epi8(15));
    _mm512_storeu_si512(out, _mm512_sub_epi8(_mm512_xor_si512(bytes, sign), sign));
  }

  // Products of codes with queries of 16 bits, 32 channels at a time; a lane is a sum of integers.
  static constexpr int kSumChannels = 32;
  struct Sum {
    __m512i v;

    static Sum zero() { return {_mm512_setzero_si512()}; }
    Lanes total() const { return {_mm512_cvtepi32_ps(v)}; }
  };
  static __m512i load_key(const std::byte* codes) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
  }
  static __m512i load_query(const int16_t* codes) { return _mm512_loadu_si512(codes); }
  static void add(Sum& sum, __m512i key, __m512i query) {
    sum.v = _mm512_dpwssd_epi32(sum.v, key, query);
  }
  static void store_words(Lanes numbers, float factor, int16_t* out) {
    const __m512i n = _mm512_cvtps_epi32(_mm512_mul_ps(numbers.v, _mm512_set1_ps(factor)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi32_epi16(n));
  }
};

}  // namespace tessera::avx512
