#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/tiles/sketch_sums.h"

namespace tessera {

// The kernels of SketchKernels with vectors of AVX2. A shuffle of bytes looks 32 tokens up in the
// table of two channels. Its type `Isa` keeps the code of one instruction set apart from that of
// another.
template <class Isa>
struct Avx2Sketch {
  static void multiply(const uint8_t* bytes, const int16_t* factors, int32_t count, int32_t heads,
                       int32_t* products) {
    for (int32_t head = 0; head < heads; ++head, factors += count) {
      __m256i sums = _mm256_setzero_si256();
      int32_t i = 0;
      for (; i + 16 <= count; i += 16) {
        const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + i));
        const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(factors + i));
        sums = _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_cvtepu8_epi16(some), words));
      }
      products[head] = total(sums);
      if (i < count) {
        const __m128i some = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes + i));
        const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(factors + i));
        products[head] += total(_mm_madd_epi16(_mm_cvtepu8_epi16(some), words));
      }
    }
  }

  static void add(const SketchStep& step, int32_t heads, SketchSums& sums) {
    __m256i places[SketchStep::kMaxBlocks * kMaxHeadDim / 2];
    for (int32_t i = 0; i < step.blocks * step.head_dim / 2; ++i) {
      places[i] = half_bytes(step.codes + int64_t{i} * 16);
    }
    int32_t head = 0;
    for (; head + 2 <= heads; head += 2) {
      add_heads<2>(step, places, head, sums);
    }
    if (head < heads) {
      add_heads<1>(step, places, head, sums);
    }
  }

 private:
  static constexpr int32_t kVectors = 2;  // of products of one block

  static int32_t total(__m128i four) {
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    return _mm_cvtsi128_si32(four);
  }
  static int32_t total(__m256i eight) {
    return total(_mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1)));
  }
  static int32_t largest_of(__m256i words) {  // of words that are not negative
    const __m128i eight =
        _mm_max_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    // The instruction finds the smallest unsigned word.
    const __m128i smallest = _mm_minpos_epu16(_mm_xor_si128(eight, _mm_set1_epi16(-1)));
    return 0xffff ^ (_mm_cvtsi128_si32(smallest) & 0xffff);
  }
  // Returns: half bytes of 16 bytes: the lower halves, then the upper ones.
  static __m256i half_bytes(const uint8_t* codes) {
    const __m256i twice =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    const __m256i shifted = _mm256_srlv_epi64(twice, _mm256_setr_epi64x(0, 0, 4, 4));
    return _mm256_and_si256(shifted, _mm256_set1_epi8(15));
  }
  static __m256i entries(const uint8_t* table) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  }

  using Products = __m256i[kVectors * SketchStep::kMaxBlocks];

  // Writes products of kBlocks blocks with kHeads heads: a block's even tokens, then its odd ones.
  // Two of each share the loads of a look-up, and their sums fit into the registers.
  template <int32_t kHeads, int32_t kBlocks>
  static void multiply(const SketchStep& step, const __m256i* places, int32_t block, int32_t head,
                       Products* products) {
    const int32_t pairs = step.head_dim / 2;
    places += int64_t{block} * pairs;
    const uint8_t* const tables = step.tables + int64_t{head} * pairs * 16;
    // Sums of words: of whole words, so that odd bytes are added to the upper half, and of the odd
    // bytes alone, by which the first are corrected.
    __m256i even[kHeads][kBlocks] = {};
    __m256i odd[kHeads][kBlocks] = {};
    for (int32_t pair = 0; pair < pairs; pair += 4) {
#pragma GCC unroll 2
      for (int32_t i = 0; i < kHeads; ++i) {
        const uint8_t* const table = tables + (int64_t{i} * pairs + pair) * 16;
        const __m256i four[] = {entries(table), entries(table + 16), entries(table + 32),
                                entries(table + 48)};
#pragma GCC unroll 2
        for (int32_t j = 0; j < kBlocks; ++j) {
          const __m256i* const of = places + int64_t{j} * pairs + pair;
          const __m256i sum = _mm256_add_epi8(_mm256_add_epi8(_mm256_shuffle_epi8(four[0], of[0]),
                                                              _mm256_shuffle_epi8(four[1], of[1])),
                                              _mm256_add_epi8(_mm256_shuffle_epi8(four[2], of[2]),
                                                              _mm256_shuffle_epi8(four[3], of[3])));
          even[i][j] = _mm256_add_epi16(even[i][j], sum);
          odd[i][j] = _mm256_add_epi16(odd[i][j], _mm256_srli_epi16(sum, 8));
        }
      }
    }
    const __m256i zero = _mm256_set1_epi16(static_cast<int16_t>(pairs * SketchStep::kTableZero));
#pragma GCC unroll 2
    for (int32_t j = 0; j < kBlocks; ++j) {
      const __m256i scales = _mm256_loadu_si256(
          reinterpret_cast<const __m256i*>(step.scales + int64_t{block + j} * kSketchTokens));
      // Times 128, because the instruction multiplies, rounds and divides by 2^15.
      const __m256i even_scales =
          _mm256_slli_epi16(_mm256_and_si256(scales, _mm256_set1_epi16(0xff)), 7);
      const __m256i odd_scales = _mm256_slli_epi16(_mm256_srli_epi16(scales, 8), 7);
#pragma GCC unroll 2
      for (int32_t i = 0; i < kHeads; ++i) {
        const __m256i low = _mm256_sub_epi16(even[i][j], _mm256_slli_epi16(odd[i][j], 8));
        __m256i* const out = products[i] + kVectors * (block + j);
        out[0] = _mm256_mulhrs_epi16(_mm256_sub_epi16(low, zero), even_scales);
        out[1] = _mm256_mulhrs_epi16(_mm256_sub_epi16(odd[i][j], zero), odd_scales);
      }
    }
  }

  template <int32_t kHeads>
  static void add_heads(const SketchStep& step, const __m256i* places, int32_t head,
                        SketchSums& sums) {
    Products products[kHeads];
    int32_t block = 0;
    for (; block + 2 <= step.blocks; block += 2) {
      multiply<kHeads, 2>(step, places, block, head, products);
    }
    if (block < step.blocks) {
      multiply<kHeads, 1>(step, places, block, head, products);
    }
    for (int32_t i = 0; i < kHeads; ++i) {
      const int32_t vectors = kVectors * step.blocks;
      __m256i most = _mm256_setzero_si256();
      for (int32_t v = 0; v < vectors; ++v) {
        most = _mm256_max_epi16(most, products[i][v]);
      }
      const int32_t largest = largest_of(most);
      const __m256i below = _mm256_set1_epi16(static_cast<int16_t>(largest));
      const __m256i width = _mm256_set1_epi16(static_cast<int16_t>(step.widths[head + i]));
      __m256i near = _mm256_setzero_si256();
      for (int32_t v = 0; v < vectors; ++v) {
        // The product of words is one of signed words, and these are below 2^15.
        const __m256i words = _mm256_subs_epu16(width, _mm256_sub_epi16(below, products[i][v]));
        near = _mm256_add_epi32(near, _mm256_madd_epi16(words, _mm256_set1_epi16(1)));
      }
      sums.largest[head + i] = largest;
      sums.near[head + i] = total(near);
    }
  }
};

}  // namespace tessera
