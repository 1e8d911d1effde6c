#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/simd/lanes_avx512.h"

namespace tessera::avx512 {

// Expansion of sparse tokens for the kernel templates of this folder. AVX-512 VBMI2 expands 32
// words or 64 bytes by a bitmap in one instruction.
struct SparseLanes {
  using Floats = Lanes;

  // Expands f16 from `kept` to their channels, 0 elsewhere. The bitmap has `words` words of 64
  // channels each.
  [[gnu::always_inline]] static void expand_halves(const std::byte* kept, const std::byte* bitmap,
                                                   int words, std::byte* out) {
    for (int i = 0; i < words; ++i, out += 128) {
      uint64_t bits;
      __builtin_memcpy(&bits, bitmap + 8 * i, sizeof(bits));
      const auto low = static_cast<uint32_t>(bits);
      const auto high = static_cast<uint32_t>(bits >> 32);
      const __m512i first = _mm512_loadu_si512(kept);
      const __m512i second = _mm512_loadu_si512(kept + 2 * __builtin_popcount(low));
      _mm512_storeu_si512(out, _mm512_maskz_expand_epi16(low, first));
      _mm512_storeu_si512(out + 64, _mm512_maskz_expand_epi16(high, second));
      kept += 2 * __builtin_popcountll(bits);
    }
  }
  // The same for bytes.
  [[gnu::always_inline]] static void expand_bytes(const std::byte* kept, const std::byte* bitmap,
                                                  int words, std::byte* out) {
    for (int i = 0; i < words; ++i, out += 64) {
      uint64_t bits;
      __builtin_memcpy(&bits, bitmap + 8 * i, sizeof(bits));
      const __m512i packed = _mm512_loadu_si512(kept);
      _mm512_storeu_si512(out, _mm512_maskz_expand_epi8(bits, packed));
      kept += __builtin_popcountll(bits);
    }
  }
  // Widens 64 codes of 4 bits to bytes. The lower half of a byte comes first.
  static void widen_64(const std::byte* codes, std::byte* out) {
    const __m512i words =
        _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
    const __m512i halves = _mm512_or_si512(words, _mm512_slli_epi16(words, 4));
    const __m512i sign = _mm512_set1_epi8(8);
    const __m512i bytes = _mm512_and_si512(halves, _mm512_set1_epi8(15));
    _mm512_storeu_si512(out, _mm512_sub_epi8(_mm512_xor_si512(bytes, sign), sign));
  }

  // Converts dense f16 to f32, and dense bytes to 16-bit words.
  template <class T>
  static void widen(const std::byte* dense, int channels, std::byte* out) {
    for (int i = 0; i < channels * static_cast<int>(sizeof(T)); i += 32) {
      const __m256i loaded = _mm256_load_si256(reinterpret_cast<const __m256i*>(dense + i));
      if constexpr (sizeof(T) == 1) {
        _mm512_store_si512(out + 2 * i, _mm512_cvtepi8_epi16(loaded));
      } else {
        _mm512_store_ps(out + 2 * i, _mm512_cvtph_ps(loaded));
      }
    }
  }

  // Products of queries and 16 broadcast bytes of a key: 4 floats, or 8 words.
  struct FloatProduct {
    using Sum = __m512;
    static Sum zero() { return _mm512_setzero_ps(); }
    static __m512 load(const std::byte* queries) { return _mm512_load_ps(queries); }
    static Sum add(Sum sum, __m512 query, const std::byte* key) {
      const __m128 unit = _mm_load_ps(reinterpret_cast<const float*>(key));
      return _mm512_fmadd_ps(query, _mm512_broadcast_f32x4(unit), sum);
    }
    static Lanes total(Sum sum) { return {sum}; }
  };
  struct CodeProduct {
    using Sum = __m512i;
    static Sum zero() { return _mm512_setzero_si512(); }
    static __m512i load(const std::byte* queries) { return _mm512_load_si512(queries); }
    static Sum add(Sum sum, __m512i query, const std::byte* key) {
      const __m128i unit = _mm_load_si128(reinterpret_cast<const __m128i*>(key));
      return _mm512_dpwssd_epi32(sum, query, _mm512_broadcast_i32x4(unit));
    }
    static Lanes total(Sum sum) { return {_mm512_cvtepi32_ps(sum)}; }
  };
};

}  // namespace tessera::avx512
