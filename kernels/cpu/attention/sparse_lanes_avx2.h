#pragma once

#include <immintrin.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention/lanes_avx2.h"

namespace tessera::avx2 {

// For each 8 bits of a bitmap, where the bytes that are kept go: byte i of a result is byte
// places[bits][i] of what is packed, or 0 where the place is 0x80. The first for bytes, the second for
// words.
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

// Sparse tokens as the kernel templates of this folder see them: 8 channels at a time, by a table.
struct SparseLanes {
  using Floats = Lanes;
  static constexpr int kStep = 2;  // pairs a pass over keys serves

  // `words` words of a bitmap, 64 channels each: f16 from `kept` to their channels, 0 elsewhere.
  static void expand_halves(const std::byte* kept, const std::byte* bitmap, int words,
                            std::byte* out) {
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
  static void expand_bytes(const std::byte* kept, const std::byte* bitmap, int words,
                           std::byte* out) {
    for (int i = 0; i < 8 * words; ++i, out += 8) {
      const auto bits = static_cast<uint8_t>(bitmap[i]);
      const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kept));
      const __m128i places =
          _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kExpandTables.bytes[bits]));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_shuffle_epi8(packed, places));
      kept += __builtin_popcount(bits);
    }
  }
  // 64 codes of 4 bits, the lower half of a byte first, as bytes.
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

  // Products of codes with queries of 16 bits, 16 channels at a time; a lane is a sum of integers.
  static constexpr int kSumChannels = 16;
  struct Sum {
    __m256i v;

    static Sum zero() { return {_mm256_setzero_si256()}; }
    Lanes total() const { return {_mm256_cvtepi32_ps(v)}; }
  };
  static __m256i load_key(const std::byte* codes) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  }
  static __m256i load_query(const int16_t* codes) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
  }
  static void add(Sum& sum, __m256i key, __m256i query) {
    sum.v = _mm256_add_epi32(sum.v, _mm256_madd_epi16(key, query));
  }
  static void store_words(Lanes numbers, float factor, int16_t* out) {
    const __m256i n = _mm256_cvtps_epi32(_mm256_mul_ps(numbers.v, _mm256_set1_ps(factor)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                     _mm_packs_epi32(_mm256_castsi256_si128(n), _mm256_extracti128_si256(n, 1)));
  }
};

}  // namespace tessera::avx2
