#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/tiles/sketch_sums.h"

namespace tessera {

// The SketchKernel of AVX2. A shuffle of bytes looks 32 tokens up in the table of two channels. Its
// type `Isa` keeps the code of one instruction set apart from that of another.
template <class Isa>
struct Avx2Sketch {
  static void add(const SketchStep& step, int32_t heads, SketchSums& sums) {
    Work work;
    int32_t head = 0;
    for (; head + 4 <= heads; head += 4) {
      multiply<4>(step, head, work);
    }
    switch (heads - head) {
      case 3:
        multiply<3>(step, head, work);
        break;
      case 2:
        multiply<2>(step, head, work);
        break;
      case 1:
        multiply<1>(step, head, work);
        break;
      default:
        break;
    }
    for (head = heads; head < kHeads; ++head) {
      work.of[head] = OfHead{};
    }
    const __m128i largest = largest_of(work);
    const __m128i floors =
        _mm_sub_epi16(largest, _mm_loadu_si128(reinterpret_cast<const __m128i*>(step.widths)));
    // A token's part is max(product, floor) - floor.
    const __m256i all_floors = _mm256_mullo_epi32(_mm256_set1_epi32(step.blocks * kSketchTokens),
                                                  _mm256_cvtepi16_epi32(floors));
    write(sums.mean, totals_of(work, &OfHead::mean));
    write(sums.largest, _mm256_cvtepi16_epi32(largest));
    add_above(floors, heads, step.blocks, work);
    write(sums.near, _mm256_sub_epi32(totals_of(work, &OfHead::above), all_floors));
  }

 private:
  static constexpr int32_t kHeads = SketchStep::kMaxHeads;
  static constexpr int32_t kVectors = 2;  // of products of one block: even tokens, then odd ones

  // Vectors of one head.
  struct OfHead {
    __m256i mean;     // parts of the product of the mean
    __m256i largest;  // products, at least 0
    __m256i above;    // parts of the sum of max(product, floor)
    __m256i products[kVectors * SketchStep::kMaxBlocks];
  };
  struct Work {
    OfHead of[kHeads];
  };

  static __m256i load(const void* bytes) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(bytes));
  }
  static void write(int32_t* sums, __m256i eight) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums), eight);
  }

  // Returns: the sum of the words of each head.
  static __m256i totals_of(const Work& work, __m256i OfHead::*words) {
    const auto two = [](__m256i a, __m256i b) {
      return _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    };
    const auto four = [&](const OfHead* of) {
      const __m256i low = two(of[0].*words, of[1].*words);
      const __m256i high = two(of[2].*words, of[3].*words);
      return _mm256_add_epi32(_mm256_unpacklo_epi64(low, high), _mm256_unpackhi_epi64(low, high));
    };
    const __m256i low = four(work.of);
    const __m256i high = four(work.of + 4);
    return _mm256_add_epi32(_mm256_permute2x128_si256(low, high, 0x20),
                            _mm256_permute2x128_si256(low, high, 0x31));
  }
  // Returns: the largest product of each head.
  static __m128i largest_of(const Work& work) {
    const auto two = [](const OfHead* of) {
      return _mm256_max_epi16(_mm256_unpacklo_epi16(of[0].largest, of[1].largest),
                              _mm256_unpackhi_epi16(of[0].largest, of[1].largest));
    };
    const auto four = [&two](const OfHead* of) {
      const __m256i low = two(of);
      const __m256i high = two(of + 2);
      return _mm256_max_epi16(_mm256_unpacklo_epi32(low, high), _mm256_unpackhi_epi32(low, high));
    };
    const __m256i low = four(work.of);
    const __m256i high = four(work.of + 4);
    const __m256i all =
        _mm256_max_epi16(_mm256_unpacklo_epi64(low, high), _mm256_unpackhi_epi64(low, high));
    return _mm_max_epi16(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  }

  // Multiplies kSome heads with the mean, and with the tokens. Loops over these heads are unrolled,
  // because compilers keep arrays in registers only then.
  template <int32_t kSome>
  static void multiply(const SketchStep& step, int32_t head, Work& work) {
    OfHead* const of = work.of + head;
    const int64_t padded = SketchStep::padded(step.head_dim);
    const int16_t* const factors = step.factors + head * padded;
    __m256i sums[kSome] = {};
    for (int64_t c = 0; c < padded; c += 16) {
      const __m256i mean =
          _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(step.mean + c)));
#pragma GCC unroll 4
      for (int32_t i = 0; i < kSome; ++i) {
        sums[i] =
            _mm256_add_epi32(sums[i], _mm256_madd_epi16(mean, load(factors + i * padded + c)));
      }
    }
#pragma GCC unroll 4
    for (int32_t i = 0; i < kSome; ++i) {
      of[i].mean = sums[i];
      of[i].largest = _mm256_setzero_si256();
    }
    for (int32_t block = 0; block < step.blocks; ++block) {
      look_up<kSome>(step, block, head, of);
    }
  }

  // Writes the products of a block's tokens with kSome heads. Heads share the codes of each four
  // channels.
  template <int32_t kSome>
  static void look_up(const SketchStep& step, int32_t block, int32_t head, OfHead* of_heads) {
    const int32_t pairs = step.head_dim / 2;
    const uint8_t* codes = step.codes + int64_t{block} * pairs / 2 * kSketchTokens;
    const uint8_t* tables = step.tables + int64_t{head} * pairs * 16;
    const auto zero = static_cast<int16_t>(-pairs * SketchStep::kTableZero);
    // Sums of half words: of whole ones, so that odd bytes are added to the upper half, and of the
    // odd bytes alone, by which the first are corrected.
    __m256i even[kSome];
    __m256i odd[kSome];
#pragma GCC unroll 4
    for (int32_t i = 0; i < kSome; ++i) {
      odd[i] = _mm256_set1_epi16(zero);
      even[i] = _mm256_add_epi16(odd[i], _mm256_slli_epi16(odd[i], 8));
    }
    const __m256i half = _mm256_set1_epi8(15);
    for (int32_t pair = 0; pair < pairs; pair += 4, codes += 64, tables += 64) {
      const __m256i low = load(codes);
      const __m256i high = load(codes + kSketchTokens);
      const __m256i of[] = {
          _mm256_and_si256(low, half), _mm256_and_si256(_mm256_srli_epi16(low, 4), half),
          _mm256_and_si256(high, half), _mm256_and_si256(_mm256_srli_epi16(high, 4), half)};
#pragma GCC unroll 4
      for (int32_t i = 0; i < kSome; ++i) {
        const uint8_t* const table = tables + int64_t{i} * pairs * 16;
        const __m256i sum = _mm256_add_epi8(
            _mm256_add_epi8(entries(table, of[0]), entries(table + 16, of[1])),
            _mm256_add_epi8(entries(table + 32, of[2]), entries(table + 48, of[3])));
        even[i] = _mm256_add_epi16(even[i], sum);
        odd[i] = _mm256_add_epi16(odd[i], _mm256_srli_epi16(sum, 8));
      }
    }
    const __m256i scales = load(step.scales + int64_t{block} * kSketchTokens);
    // Times 128, because the instruction multiplies, rounds and divides by 2^15.
    const __m256i even_scales = _mm256_srli_epi16(_mm256_slli_epi16(scales, 8), 1);
    const __m256i odd_scales = _mm256_slli_epi16(_mm256_srli_epi16(scales, 8), 7);
#pragma GCC unroll 4
    for (int32_t i = 0; i < kSome; ++i) {
      const __m256i low =
          _mm256_mulhrs_epi16(_mm256_sub_epi16(even[i], _mm256_slli_epi16(odd[i], 8)), even_scales);
      const __m256i high = _mm256_mulhrs_epi16(odd[i], odd_scales);
      OfHead& head_of = of_heads[i];
      head_of.products[kVectors * block] = low;
      head_of.products[kVectors * block + 1] = high;
      head_of.largest = _mm256_max_epi16(head_of.largest, _mm256_max_epi16(low, high));
    }
  }
  // Returns: the entries at 32 places of a table.
  static __m256i entries(const uint8_t* table, __m256i places) {
    const auto* const sixteen = reinterpret_cast<const __m128i*>(table);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(sixteen)), places);
  }

  // Writes OfHead::above.
  static void add_above(__m128i floors, int32_t heads, int32_t blocks, Work& work) {
    __m256i rest = _mm256_broadcastsi128_si256(floors);
    for (int32_t head = 0; head < heads; ++head) {
      const __m256i floor = _mm256_broadcastw_epi16(_mm256_castsi256_si128(rest));
      rest = _mm256_bsrli_epi128(rest, 2);
      __m256i words = _mm256_setzero_si256();
      const __m256i* products = work.of[head].products;
      for (int32_t block = 0; block < blocks; ++block, products += kVectors) {
        words = _mm256_add_epi16(words, _mm256_add_epi16(_mm256_max_epi16(products[0], floor),
                                                         _mm256_max_epi16(products[1], floor)));
      }
      work.of[head].above = _mm256_madd_epi16(words, _mm256_set1_epi16(1));
    }
  }
};

}  // namespace tessera
