#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/cpu/tiles/half_tokens_avx512.h"

namespace tessera::avx512 {

// Scores of sparse keys that are expanded to 16 bits: f16 stay f16, codes become integers. A vector
// holds 16 bytes of a key for each of 4 pairs, as in SparseAttention. The next tokens are expanded
// while the current ones are multiplied.
// Requires: every pair is loaded by load_query_tokens. Returns: scores in block.weights,
// [pairs, kAttentionTile].
struct HalfScores : HalfTokens {
  static constexpr int kQuarters = 4;  // pairs in a vector, 8 channels each
  static constexpr int kUnit = 8;
  static constexpr int kUnitBytes = 2 * kUnit;

  // merge_N adds neighbouring parts of N bytes. In each run of 16 bytes (merge_2: 4 bytes), sums of
  // `a` go to the lower half and sums of `b` to the upper half.
  TESSERA_FP16_INLINE static __m512h merge_8(__m512h a, __m512h b) {
    const __m512i x = _mm512_castph_si512(a);
    const __m512i y = _mm512_castph_si512(b);
    return _mm512_add_ph(_mm512_castsi512_ph(_mm512_mask_blend_epi64(0xaa, x, y)),
                         _mm512_castsi512_ph(_mm512_alignr_epi8(y, x, 8)));
  }
  TESSERA_FP16_INLINE static __m512h merge_4(__m512h a, __m512h b) {
    const __m512 x = _mm512_castph_ps(a);
    const __m512 y = _mm512_castph_ps(b);
    return _mm512_add_ph(_mm512_castps_ph(_mm512_shuffle_ps(x, y, 0x88)),
                         _mm512_castps_ph(_mm512_shuffle_ps(x, y, 0xdd)));
  }
  TESSERA_FP16_INLINE static __m512h merge_2(__m512h a, __m512h b) {
    const __m512i x = _mm512_castph_si512(a);
    const __m512i y = _mm512_castph_si512(b);
    return _mm512_add_ph(
        _mm512_castsi512_ph(_mm512_mask_blend_epi16(0xaaaaaaaa, x, _mm512_slli_epi32(y, 16))),
        _mm512_castsi512_ph(_mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(x, 16), y)));
  }
  // Product of f16: a vector of queries, 8 channels for each of kQuarters pairs, times 16 bytes of
  // a key.
  struct HalfProduct {
    using Sum = __m512h;
    static const std::byte* queries(const PairBlock& block, int pair) {
      return reinterpret_cast<const std::byte*>(block.token_halves[pair]);
    }
    template <int kCount>
    [[gnu::always_inline]] static void expand(const Tokens& tokens, std::byte* out) {
      SparseLanes::expand_halves(tokens.kept, tokens.bitmap, kCount, out);
    }
    TESSERA_FP16_INLINE static Sum zero() { return _mm512_setzero_ph(); }
    TESSERA_FP16_INLINE static Sum add(Sum sum, __m512i query, __m512i key) {
      return _mm512_fmadd_ph(_mm512_castsi512_ph(query), _mm512_castsi512_ph(key), sum);
    }
    // Adds up the 8 lanes of each quarter and token.
    TESSERA_FP16_INLINE static void write_scores(const Sum (&sums)[kTokens], const float* steps,
                                                 float* out) {
      const __m512h even = merge_4(merge_8(sums[0], sums[2]), merge_8(sums[4], sums[6]));
      const __m512h odd = merge_4(merge_8(sums[1], sums[3]), merge_8(sums[5], sums[7]));
      const __m512i all = _mm512_castph_si512(merge_2(even, odd));
      const __m512 low = _mm512_cvtph_ps(_mm512_castsi512_si256(all));
      const __m512 high = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(all, 1));
      const __m256 scores[kQuarters] = {_mm512_castps512_ps256(low), _mm512_extractf32x8_ps(low, 1),
                                        _mm512_castps512_ps256(high),
                                        _mm512_extractf32x8_ps(high, 1)};
#pragma GCC unroll 4
      for (int pair = 0; pair < kQuarters; ++pair) {
        _mm256_storeu_ps(out + pair * kAttentionTile,
                         _mm256_mul_ps(scores[pair], _mm256_set1_ps(steps[pair])));
      }
    }
  };
  // Product of 16-bit integers and codes. The sums are the same integers as in SparseAttention.
  struct CodeProduct {
    using Sum = __m512i;
    static const std::byte* queries(const PairBlock& block, int pair) {
      return reinterpret_cast<const std::byte*>(block.token_codes[pair]);
    }
    template <int kCount>
    [[gnu::always_inline]] static void expand(const Tokens& tokens, std::byte* out) {
      const std::byte* kept = tokens.kept;
#pragma GCC unroll 4
      for (int i = 0; i < kCount; ++i, out += kWordBytes) {
        uint64_t bits;
        __builtin_memcpy(&bits, tokens.bitmap + 8 * i, sizeof(bits));
        const __m512i codes = _mm512_maskz_expand_epi8(bits, _mm512_loadu_si512(kept));
        _mm512_store_si512(out, _mm512_cvtepi8_epi16(_mm512_castsi512_si256(codes)));
        _mm512_store_si512(out + kWord, _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(codes, 1)));
        kept += __builtin_popcountll(bits);
      }
    }
    TESSERA_FP16_INLINE static Sum zero() {
      return _mm512_setzero_si512();
    }
    TESSERA_FP16_INLINE static Sum add(Sum sum, __m512i query, __m512i key) {
      return _mm512_dpwssd_epi32(sum, query, key);
    }
    TESSERA_FP16_INLINE static void write_scores(const Sum (&sums)[kTokens], const float*,
                                                 float* out) {
#pragma GCC unroll 2
      for (int four = 0; four < kTokens; four += 4) {
        const Lanes totals[4] = {{_mm512_cvtepi32_ps(sums[four])},
                                 {_mm512_cvtepi32_ps(sums[four + 1])},
                                 {_mm512_cvtepi32_ps(sums[four + 2])},
                                 {_mm512_cvtepi32_ps(sums[four + 3])}};
        Lanes::quarter_sums(totals).store_quarters(out + four, kAttentionTile);
      }
    }
  };

  // Tokens to expand while others are multiplied, so that a core does both at once.
  struct Ahead {
    Tokens tokens;
    int count;
    std::byte* out;
  };

  // Writes the scores of kQuarters pairs from `pair` on against kTokens expanded tokens.
  template <class Product, int kCount, bool kExpands>
  TESSERA_FP16 static void score_tokens(const PairBlock& block, int pair, const std::byte* keys,
                                        Ahead ahead, float* out) {
    constexpr int64_t kStride = kCount * kWordBytes;
    const std::byte* queries = Product::queries(block, pair);
    typename Product::Sum sums[kTokens];
#pragma GCC unroll 8
    for (int token = 0; token < kTokens; ++token) {
      sums[token] = Product::zero();
    }
    for (int part = 0; part < kTokens; ++part) {
#pragma GCC unroll 4
      for (int i = 0; i < kCount; ++i, queries += kQuarters * kUnitBytes, keys += kUnitBytes) {
        const __m512i query = _mm512_load_si512(queries);
#pragma GCC unroll 8
        for (int token = 0; token < kTokens; ++token) {
          const __m128i unit =
              _mm_load_si128(reinterpret_cast<const __m128i*>(keys + token * kStride));
          sums[token] = Product::add(sums[token], query, _mm512_broadcast_i32x4(unit));
        }
      }
      if (kExpands && part < ahead.count) {
        Product::template expand<kCount>(ahead.tokens, ahead.out);
        ahead.tokens.next();
        ahead.out += kStride;
      }
    }
    Product::write_scores(sums, block.half_steps + pair, out);
  }

  template <class Product, int kCount>
  static void score_words(PairBlock& block, const TileStep& step, LineFetch fetch) {
    constexpr int64_t kStride = kCount * kWordBytes;
    const Packed packed = Sparse::pack(block, sparse_keys(step.tile.shape->layout), step.tile.keys,
                                       step.begin, step.end);
    std::byte* keys = block.expanded;
    std::byte* next = block.expanded + kTokens * kStride;
    int first = step.begin / kTokens * kTokens;
    Tokens tokens = tokens_from(packed, step.begin);
    for (int token = step.begin; token < std::min(step.end, first + kTokens); ++token) {
      Product::template expand<kCount>(tokens, keys + (token - first) * kStride);
      tokens.next();
    }
    for (; first < step.end; first += kTokens) {
      const int left = step.end - first - kTokens;
      const Ahead ahead{tokens_from(packed, left > 0 ? first + kTokens : first), left, next};
      float* scores = block.weights + first;
      score_tokens<Product, kCount, true>(block, 0, keys, ahead, scores);
      for (int pair = kQuarters; pair < block.pairs; pair += kQuarters) {
        score_tokens<Product, kCount, false>(block, pair, keys, ahead,
                                             scores + pair * kAttentionTile);
      }
      std::swap(keys, next);
      fetch.some();
    }
  }

  template <class Product>
  static void score(PairBlock& block, const TileStep& step, LineFetch fetch) {
    using Score = void (*)(PairBlock&, const TileStep&, LineFetch);
    static constexpr Score kScore[kWords] = {score_words<Product, 1>, score_words<Product, 2>,
                                             score_words<Product, 3>, score_words<Product, 4>};
    kScore[div_ceil(block.head_dim, kWord) - 1](block, step, fetch);
  }
};

}  // namespace tessera::avx512
