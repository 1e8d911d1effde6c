#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/cpu/attention/half_step.h"
#include "kernels/cpu/attention/lane_softmax.h"
#include "kernels/cpu/attention/sparse_attention.h"
#include "kernels/cpu/attention/sparse_lanes_avx512.h"

namespace tessera::avx512 {

// Sparse tiles with AVX512-FP16: what is expanded is multiplied as it is, 32 channels in an
// instruction, where f32 takes conversions and twice the products (half_step.h says how exactly).
// Keys of codes stay integers, as in SparseAttention; values of codes become f16, which they are
// exactly. Only the functions that say so are compiled for the instruction set, so that no other
// leaves this file with its instructions in it.
#define TESSERA_FP16 [[gnu::target("avx512fp16")]]
#define TESSERA_FP16_INLINE [[gnu::target("avx512fp16"), gnu::always_inline]]

struct SparseHalves {
  using Sparse = SparseAttention<SparseLanes>;
  using Packed = Sparse::Packed;
  using Softmax = LaneSoftmax<Lanes>;
  static constexpr int kLanes = Lanes::kLanes;
  static constexpr int kKeyTile = KvPageLayout::kKeyTile;
  static constexpr int kTileVectors = kAttentionTile / kLanes;
  static constexpr int kQuarters = 4;  // pairs of a vector of keys, 8 channels of each
  static constexpr int kUnit = 8;
  static constexpr int kTokens = 8;                 // of keys in a pass
  static constexpr int kWord = 64;                  // channels
  static constexpr int64_t kWordBytes = 2 * kWord;  // of their f16
  static constexpr int kWords = kMaxHeadDim / kWord;

  // ---- queries

  static void load_query_tokens(PairBlock& block, int32_t pair, const float* query, float factor) {
    Sparse::load_query_tokens(block, pair, query, factor);
    const int first = pair / kQuarters * kQuarters;
    f16* const halves = block.token_halves[first];
    if (pair == first) {  // those of pairs that do not come stay 0
      std::fill_n(halves, round_up(block.head_dim, kWord) * kQuarters, f16{});
      std::fill_n(block.half_steps + pair, kQuarters, 0.0f);
    }
    float largest = kLeastLargest;
    for (int channel = 0; channel < block.head_dim; ++channel) {
      largest = std::max(largest, std::abs(query[channel] * factor));
    }
    const float range = half_query_range(block.head_dim);
    const float inverse = range / largest;
    block.half_steps[pair] = largest / range;
    for (int channel = 0; channel < block.head_dim; ++channel) {
      halves[Sparse::quarter_place(pair, channel, kUnit)] =
          to_f16(query[channel] * factor * inverse);
    }
  }

  // ---- keys

  // Tokens of one key tile, in order, as they lie in the page.
  struct Tokens {
    const std::byte* kept;
    const std::byte* bitmap;
    int64_t kept_bytes;
    int64_t bitmap_bytes;

    void next() {
      kept += kept_bytes;
      bitmap += bitmap_bytes;
    }
  };
  static Tokens tokens_from(const Packed& packed, int token) {
    const int tile = token / kKeyTile;
    const int lane = token % kKeyTile;
    return {packed.kept[tile] + lane * packed.kept_bytes,
            packed.bitmaps[tile] + lane * packed.bitmap_bytes, packed.kept_bytes,
            packed.bitmap_bytes};
  }

  // Sums of neighbours, of a's in the lower half of 16 (8) bytes and of b's in the upper.
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
  // A quarter's 8 sums for each token, added up: the scores of kQuarters pairs.
  TESSERA_FP16_INLINE static void write_scores(const __m512h (&sums)[kTokens], const float* steps,
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

  // Tokens to be expanded while others are multiplied: a core then does both at once.
  struct Ahead {
    Tokens tokens;
    int count;
    std::byte* out;
  };

  // Scores of kQuarters pairs from `pair` on against kTokens expanded tokens.
  template <int kCount, bool kExpands>
  TESSERA_FP16 static void score_tokens(const PairBlock& block, int pair, const std::byte* keys,
                                        Ahead ahead, float* out) {
    constexpr int64_t kStride = kCount * kWordBytes;
    const f16* queries = block.token_halves[pair];
    __m512h sums[kTokens];
#pragma GCC unroll 8
    for (int token = 0; token < kTokens; ++token) {
      sums[token] = _mm512_setzero_ph();
    }
    for (int part = 0; part < kTokens; ++part) {
#pragma GCC unroll 4
      for (int i = 0; i < kCount; ++i, queries += kQuarters * kUnit, keys += 16) {
        const __m512h query = _mm512_load_ph(queries);
#pragma GCC unroll 8
        for (int token = 0; token < kTokens; ++token) {
          const __m128i unit =
              _mm_load_si128(reinterpret_cast<const __m128i*>(keys + token * kStride));
          sums[token] = _mm512_fmadd_ph(query, _mm512_castsi512_ph(_mm512_broadcast_i32x4(unit)),
                                        sums[token]);
        }
      }
      if (kExpands && part < ahead.count) {
        SparseLanes::expand_halves(ahead.tokens.kept, ahead.tokens.bitmap, kCount, ahead.out);
        ahead.tokens.next();
        ahead.out += kStride;
      }
    }
    write_scores(sums, block.half_steps + pair, out);
  }

  template <int kCount>
  static void score_words(PairBlock& block, const TileStep& step, LineFetch fetch) {
    constexpr int64_t kStride = kCount * kWordBytes;
    const Packed packed = Sparse::pack(block, sparse_keys(step.tile.shape->layout), step.tile.keys,
                                       step.begin, step.end);
    std::byte* keys = block.expanded;
    std::byte* next = block.expanded + kTokens * kStride;
    int first = step.begin / kTokens * kTokens;
    Tokens tokens = tokens_from(packed, step.begin);
    for (int token = step.begin; token < std::min(step.end, first + kTokens); ++token) {
      SparseLanes::expand_halves(tokens.kept, tokens.bitmap, kCount,
                                 keys + (token - first) * kStride);
      tokens.next();
    }
    for (; first < step.end; first += kTokens) {
      const int left = step.end - first - kTokens;
      const Ahead ahead{tokens_from(packed, left > 0 ? first + kTokens : first), left, next};
      float* scores = block.weights + first;
      score_tokens<kCount, true>(block, 0, keys, ahead, scores);
      for (int pair = kQuarters; pair < block.pairs; pair += kQuarters) {
        score_tokens<kCount, false>(block, pair, keys, ahead, scores + pair * kAttentionTile);
      }
      std::swap(keys, next);
      fetch.some();
    }
  }

  static void score_tile(PairBlock& block, const TileStep& step) {
    using Score = void (*)(PairBlock&, const TileStep&, LineFetch);
    static constexpr Score kScore[kWords] = {score_words<1>, score_words<2>, score_words<3>,
                                             score_words<4>};
    if (sparse_keys(step.tile.shape->layout).is_codes()) {
      Sparse::score_tile(block, step);
      return;
    }
    const LineFetch fetch =
        Sparse::fetch_ahead(step.next == nullptr ? nullptr : step.next->keys,
                            step.next == nullptr ? 0 : step.next->shape->key_bytes);
    kScore[div_ceil(block.head_dim, kWord) - 1](block, step, fetch);
  }

  // ---- weights

  // Scores become weights, and these (times the values' scales where values are codes) f16, twice
  // in 32 bits, so that they are broadcast by the load alone.
  static void weigh(PairBlock& block, const TileStep& step, bool codes) {
    Softmax::weigh(block, step.left);
    const uint64_t present = ~uint64_t{0} >> (kAttentionTile - (step.end - step.begin))
                                                 << step.begin;
    Lanes scales[kTileVectors];
#pragma GCC unroll 4
    for (int i = 0; i < kTileVectors; ++i) {
      const std::byte* at = step.tile.scales[i * kLanes / kKeyTile] + 2 * (i * kLanes % kKeyTile);
      scales[i] = codes ? Lanes::load_f16(at + step.tile.shape->value_scales)
                              .where(static_cast<uint32_t>(present >> (i * kLanes)), Lanes::zero())
                        : Lanes::all(1.0f);
    }
    for (int first = 0; first < block.pairs; first += 4) {
      alignas(64) float inverses[4];
      Lanes largest[4];
      for (int j = 0; j < 4; ++j) {
        const float* weights =
            block.weights + std::min(first + j, block.pairs - 1) * kAttentionTile;
        largest[j] = Lanes::zero();
#pragma GCC unroll 4
        for (int i = 0; i < kTileVectors; ++i) {
          largest[j] = Lanes::max(largest[j], Lanes::load(weights + i * kLanes) * scales[i]);
        }
      }
      const Lanes bounded = Lanes::max(Lanes::all(kLeastLargest), Lanes::highest(largest));
      (bounded / Lanes::all(kHalfWeightRange)).store_4(block.weight_steps + first);
      (Lanes::all(kHalfWeightRange) / bounded).store_4(inverses);
      for (int pair = first; pair < std::min(first + 4, block.pairs); ++pair) {
        write_halves(block, pair, scales, Lanes::all(inverses[pair - first]));
      }
    }
  }
  static void write_halves(PairBlock& block, int pair, const Lanes (&scales)[kTileVectors],
                           Lanes inverse) {
#pragma GCC unroll 4
    for (int i = 0; i < kTileVectors; ++i) {
      const int at = pair * kAttentionTile + i * kLanes;
      const Lanes weight = Lanes::load(block.weights + at) * scales[i] * inverse;
      const __m512i half =
          _mm512_cvtepu16_epi32(_mm512_cvtps_ph(weight.v, _MM_FROUND_TO_NEAREST_INT));
      _mm512_store_si512(block.weight_halves + at,
                         _mm512_or_si512(half, _mm512_slli_epi32(half, 16)));
    }
  }

  // ---- values

  template <class T>
  TESSERA_FP16_INLINE static void load_word(const std::byte* kept, uint64_t bits, __m512h& first,
                                            __m512h& second) {
    if constexpr (sizeof(T) == 1) {
      const __m512i codes = _mm512_maskz_expand_epi8(bits, _mm512_loadu_si512(kept));
      first = _mm512_cvtepi16_ph(_mm512_cvtepi8_epi16(_mm512_castsi512_si256(codes)));
      second = _mm512_cvtepi16_ph(_mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(codes, 1)));
    } else {
      const auto low = static_cast<uint32_t>(bits);
      const auto high = static_cast<uint32_t>(bits >> 32);
      const std::byte* rest = kept + 2 * __builtin_popcount(low);
      first = _mm512_castsi512_ph(_mm512_maskz_expand_epi16(low, _mm512_loadu_si512(kept)));
      second = _mm512_castsi512_ph(_mm512_maskz_expand_epi16(high, _mm512_loadu_si512(rest)));
    }
  }

  // Where a pass over a run of tokens has its channels from, kCount words of each token: the page,
  template <class T, int kCount>
  struct FromPage {
    static constexpr int kVectors = 2 * kCount;
    Tokens tokens;

    TESSERA_FP16_INLINE void load_next(__m512h (&channels)[kVectors]) {
      const std::byte* kept = tokens.kept;
#pragma GCC unroll 4
      for (int i = 0; i < kCount; ++i) {
        uint64_t bits;
        __builtin_memcpy(&bits, tokens.bitmap + 8 * i, sizeof(bits));
        load_word<T>(kept, bits, channels[2 * i], channels[2 * i + 1]);
        kept += __builtin_popcountll(bits) * sizeof(T);
      }
      tokens.next();
    }
  };
  // or where expand_run left them.
  template <int kCount>
  struct Expanded {
    static constexpr int kVectors = 2 * kCount;
    const std::byte* at;
    int64_t stride;

    TESSERA_FP16_INLINE void load_next(__m512h (&channels)[kVectors]) {
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i) {
        channels[i] = _mm512_load_ph(at + i * kWord);
      }
      at += stride;
    }
  };

  // Tokens [begin, end) of a tile, of one key tile, and the pairs and channels that a pass adds.
  struct Run {
    int begin;
    int end;
    int pair;
    int channel;
  };

  // values += weights * V, kPairs pairs and the channels that `from` has.
  template <int kPairs, class From>
  TESSERA_FP16 static void add_run(PairBlock& block, const Run& run, From from) {
    constexpr int kVectors = From::kVectors;
    __m512h sums[kPairs][kVectors];
#pragma GCC unroll 4
    for (int pair = 0; pair < kPairs; ++pair) {
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i) {
        sums[pair][i] = _mm512_setzero_ph();
      }
    }
    const uint32_t* weights = block.weight_halves + run.pair * kAttentionTile + run.begin;
    for (int left = run.end - run.begin; left > 0; --left, ++weights) {
      __m512h channels[kVectors];
      from.load_next(channels);
#pragma GCC unroll 4
      for (int pair = 0; pair < kPairs; ++pair) {
        const __m512h weight = _mm512_castsi512_ph(
            _mm512_set1_epi32(static_cast<int>(weights[pair * kAttentionTile])));
#pragma GCC unroll 8
        for (int i = 0; i < kVectors; ++i) {
          sums[pair][i] = _mm512_fmadd_ph(weight, channels[i], sums[pair][i]);
        }
      }
    }
    const int left = block.head_dim - run.channel;
#pragma GCC unroll 4
    for (int pair = 0; pair < kPairs; ++pair) {
      const int of = run.pair + pair;
      const __m512 step = _mm512_set1_ps(block.weight_steps[of]);
      float* values = block.values + int64_t{of} * block.head_dim + run.channel;
      if (left >= kVectors * 2 * kLanes) {
#pragma GCC unroll 8
        for (int i = 0; i < kVectors; ++i) {
          add_sums(values + i * 2 * kLanes, sums[pair][i], step);
        }
      } else {
        add_some_sums<kVectors>(values, left, sums[pair], step);
      }
    }
  }
  TESSERA_FP16_INLINE static void add_sums(float* values, __m512h sum, __m512 step) {
    const __m512i halves = _mm512_castph_si512(sum);
    const __m512 low = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
    const __m512 high = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
    _mm512_storeu_ps(values, _mm512_fmadd_ps(low, step, _mm512_loadu_ps(values)));
    _mm512_storeu_ps(values + kLanes,
                     _mm512_fmadd_ps(high, step, _mm512_loadu_ps(values + kLanes)));
  }
  // The first `count` channels.
  template <int kVectors>
  TESSERA_FP16 static void add_some_sums(float* values, int count, const __m512h (&sums)[kVectors],
                                         __m512 step) {
    alignas(64) f16 halves[kVectors * 2 * kLanes];
    for (int i = 0; i < kVectors; ++i) {
      _mm512_store_ph(halves + i * 2 * kLanes, sums[i]);
    }
    for (int i = 0; i < count; i += kHeadDimMultiple) {
      (Lanes::load_half(values + i) + Lanes::load_half_f16(halves + i) * Lanes{step})
          .store_half(values + i);
    }
  }

  template <class From>
  static void add_pairs(PairBlock& block, const Run& run, const From& from) {
    using Add = void (*)(PairBlock&, const Run&, From);
    static constexpr Add kAdd[4] = {add_run<1, From>, add_run<2, From>, add_run<3, From>,
                                    add_run<4, From>};
    kAdd[std::min(block.pairs - run.pair, 4) - 1](block, run, from);
  }

  // What registers hold goes there from the page; else a run is expanded once, for all passes.
  template <class T>
  static void add_run_of(PairBlock& block, const Packed& packed, Run run) {
    const Tokens tokens = tokens_from(packed, run.begin);
    if (packed.words <= 2 && block.pairs <= 4) {
      packed.words == 1 ? add_pairs(block, run, FromPage<T, 1>{tokens})
                        : add_pairs(block, run, FromPage<T, 2>{tokens});
      return;
    }
    expand_run<T>(packed.words, tokens, run.end - run.begin, block.expanded);
    const int64_t stride = packed.words * kWordBytes;
    for (; run.pair < block.pairs; run.pair += 4) {
      for (run.channel = 0; run.channel < block.head_dim; run.channel += 2 * kWord) {
        const std::byte* at = block.expanded + run.channel * 2;
        block.head_dim - run.channel > kWord ? add_pairs(block, run, Expanded<2>{at, stride})
                                             : add_pairs(block, run, Expanded<1>{at, stride});
      }
    }
  }
  template <class T>
  TESSERA_FP16 static void expand_run(int words, Tokens tokens, int count, std::byte* out) {
    for (; count > 0; --count, tokens.next()) {
      const std::byte* kept = tokens.kept;
      for (int i = 0; i < words; ++i, out += kWordBytes) {
        uint64_t bits;
        __builtin_memcpy(&bits, tokens.bitmap + 8 * i, sizeof(bits));
        __m512h first;
        __m512h second;
        load_word<T>(kept, bits, first, second);
        _mm512_store_ph(out, first);
        _mm512_store_ph(out + kWord, second);
        kept += __builtin_popcountll(bits) * sizeof(T);
      }
    }
  }

  template <class T>
  static void add_values_of(PairBlock& block, const TileStep& step, LineFetch fetch) {
    static_assert(kHalfRun == kKeyTile);
    const Packed packed = Sparse::pack(block, sparse_values(step.tile.shape->layout),
                                       step.tile.values, step.begin, step.end);
    for (int pair = 0; pair < block.pairs; ++pair) {
      scale_values(block, pair);
    }
    for (int first = step.begin / kHalfRun * kHalfRun; first < step.end; first += kHalfRun) {
      add_run_of<T>(block, packed,
                    {std::max(step.begin, first), std::min(step.end, first + kHalfRun), 0, 0});
      fetch.some();
      fetch.some();
    }
  }
  static void scale_values(PairBlock& block, int pair) {
    const float correction = block.corrections[pair];
    float* values = block.values + int64_t{pair} * block.head_dim;
    for (int i = 0; correction != 1.0f && i < block.head_dim; i += kHeadDimMultiple) {
      (Lanes::load_half(values + i) * Lanes::all(correction)).store_half(values + i);
    }
  }

  static void add_tile(PairBlock& block, const TileStep& step) {
    score_tile(block, step);
    Softmax::raise_maxima<false>(block);
    const bool codes = sparse_values(step.tile.shape->layout).is_codes();
    weigh(block, step, codes);
    const LineFetch fetch =
        Sparse::fetch_ahead(step.next == nullptr ? nullptr : step.next->values,
                            step.next == nullptr ? 0 : step.next->shape->value_bytes);
    (codes ? add_values_of<int8_t> : add_values_of<f16>)(block, step, fetch);
  }
};

}  // namespace tessera::avx512
