#pragma once

#include <immintrin.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/simd/lanes_avx2.h"

namespace tessera::avx2 {

// Expansion tables for each 8 bits of a bitmap. Byte i of a result is byte table[bits][i] of the
// packed input, or 0 if that entry is 0x80. `bytes` expands bytes, `words` 16-bit words.
struct ExpandTables {
  alignas(64) uint8_t bytes[256][8];
  alignas(64) uint8_t words[256][16];
};

constexpr ExpandTables expand_tables() {
  ExpandTables tables{};
  for (int bits = 0; bits < 256; ++bits) {
    int from = 0;
    for (int i = 0; i < 8; ++i) {
      const bool kept = (bits >> i & 1) != 0;
      tables.bytes[bits][i] = kept ? static_cast<uint8_t>(from) : uint8_t{0x80};
      tables.words[bits][2 * i] = kept ? static_cast<uint8_t>(2 * from) : uint8_t{0x80};
      tables.words[bits][2 * i + 1] = kept ? static_cast<uint8_t>(2 * from + 1) : uint8_t{0x80};
      from += kept ? 1 : 0;
    }
  }
  return tables;
}

inline constexpr ExpandTables kExpandTables = expand_tables();

// Expansion of sparse tokens for the kernel templates of this folder: 8 channels at a time, by a
// table.
struct SparseLanes {
  using Floats = Lanes;

  // Expands f16 from `kept` to their channels, 0 elsewhere. The bitmap has `words` words of 64
  // channels each.
  [[gnu::always_inline]] static void expand_halves(const std::byte* kept, const std::byte* bitmap,
                                                   int words, std::byte* out) {
    for (int i = 0; i < 8 * words; ++i, out += 16) {
      const auto bits = static_cast<uint8_t>(bitmap[i]);
      const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kept));
      const __m128i places =
          _mm_load_si128(reinterpret_cast<const __m128i*>(kExpandTables.words[bits]));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_shuffle_epi8(packed, places));
      kept += 2 * __builtin_popcount(bits);
    }
  }
  // The same for bytes.
  [[gnu::always_inline]] static void expand_bytes(const std::byte* kept, const std::byte* bitmap,
                                                  int words, std::byte* out) {
    for (int i = 0; i < 8 * words; ++i, out += 8) {
      const auto bits = static_cast<uint8_t>(bitmap[i]);
      const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kept));
      const __m128i places =
          _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kExpandTables.bytes[bits]));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_shuffle_epi8(packed, places));
      kept += __builtin_popcount(bits);
    }
  }
  // Widens 64 codes of 4 bits to bytes. The lower half of a byte comes first.
  static void widen_64(const std::byte* codes, std::byte* out) {
    const __m256i sign = _mm256_set1_epi8(8);
    for (int i = 0; i < 2; ++i) {
      const __m256i words =
          _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + 16 * i)));
      const __m256i halves = _mm256_or_si256(words, _mm256_slli_epi16(words, 4));
      const __m256i bytes = _mm256_and_si256(halves, _mm256_set1_epi8(15));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 32 * i),
                          _mm256_sub_epi8(_mm256_xor_si256(bytes, sign), sign));
    }
  }

  // Converts dense f16 to f32, and dense bytes to 16-bit words.
  template <class T>
  static void widen(const std::byte* dense, int channels, std::byte* out) {
    for (int i = 0; i < channels * static_cast<int>(sizeof(T)); i += 16) {
      const __m128i loaded = _mm_load_si128(reinterpret_cast<const __m128i*>(dense + i));
      if constexpr (sizeof(T) == 1) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(out + 2 * i), _mm256_cvtepi8_epi16(loaded));
      } else {
        _mm256_store_ps(reinterpret_cast<float*>(out + 2 * i), _mm256_cvtph_ps(loaded));
      }
    }
  }

  // Products of queries and 16 broadcast bytes of a key: 4 floats, or 8 words.
  struct FloatProduct {
    using Sum = __m256;
    static Sum zero() { return _mm256_setzero_ps(); }
    static __m256 load(const std::byte* queries) {
      return _mm256_load_ps(reinterpret_cast<const float*>(queries));
    }
    static Sum add(Sum sum, __m256 query, const std::byte* key) {
      const __m256 unit = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(key));
      return _mm256_fmadd_ps(query, unit, sum);
    }
    static Lanes total(Sum sum) { return {sum}; }
  };
  struct CodeProduct {
    using Sum = __m256i;
    static Sum zero() { return _mm256_setzero_si256(); }
    static __m256i load(const std::byte* queries) {
      return _mm256_load_si256(reinterpret_cast<const __m256i*>(queries));
    }
    static Sum add(Sum sum, __m256i query, const std::byte* key) {
      const __m128i unit = _mm_load_si128(reinterpret_cast<const __m128i*>(key));
      const __m256i products = _mm256_madd_epi16(query, _mm256_broadcastsi128_si256(unit));
      return _mm256_add_epi32(sum, products);
    }
    static Lanes total(Sum sum) { return {_mm256_cvtepi32_ps(sum)}; }
  };
};

}  // namespace tessera::avx2
