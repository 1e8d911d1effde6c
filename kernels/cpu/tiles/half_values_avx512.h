#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/tiles/half_tokens_avx512.h"

namespace tessera::avx512 {

// Multiplies a tile's sparse values by block.weight_halves. Sums are f16 inside a tile and are
// added to block.values as f32. If registers hold all channels and pairs, tokens go there straight
// from the page. With more channels or pairs, the tile is expanded once for all passes.
// Requires: block.weight_halves and weight_steps are those of the tile (SparseHalves::weigh).
struct HalfValues : HalfTokens {
  // Source of channels for a pass over a tile's tokens, kCount words each: the page.
  template <class T, int kCount>
  struct FromPage {
    static constexpr int kVectors = 2 * kCount;
    const Packed& packed;
    Tokens tokens;

    void seek(int token) { tokens = tokens_from(packed, token); }
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
  // Source of channels for a pass: the output of expand_tile.
  template <int kCount>
  struct Expanded {
    static constexpr int kVectors = 2 * kCount;
    const std::byte* at;
    int64_t stride;

    void seek(int) {}
    TESSERA_FP16_INLINE void load_next(__m512h (&channels)[kVectors]) {
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i) {
        channels[i] = _mm512_load_ph(at + i * kWord);
      }
      at += stride;
    }
  };

  // Tokens [begin, end) of a tile, and the first pair and first channel of a pass.
  struct Part {
    int begin;
    int end;
    int pair;
    int channel;
  };

  // values = values * correction + weights * V, for kPairs pairs and the channels of `from`.
  template <int kPairs, class From>
  TESSERA_FP16 static void add_part(PairBlock& block, const Part& part, From from,
                                    LineFetch fetch) {
    constexpr int kVectors = From::kVectors;
    __m512h sums[kPairs][kVectors];
#pragma GCC unroll 4
    for (int pair = 0; pair < kPairs; ++pair) {
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i) {
        sums[pair][i] = _mm512_setzero_ph();
      }
    }
    const uint32_t* weights = block.weight_halves + part.pair * kAttentionTile;
    for (int token = part.begin; token < part.end;) {
      from.seek(token);
      fetch.some();
      const int end = std::min(part.end, (token / kTokens + 1) * kTokens);
      for (; token < end; ++token) {
        __m512h channels[kVectors];
        from.load_next(channels);
#pragma GCC unroll 4
        for (int pair = 0; pair < kPairs; ++pair) {
          const __m512h weight = _mm512_castsi512_ph(
              _mm512_set1_epi32(static_cast<int>(weights[pair * kAttentionTile + token])));
#pragma GCC unroll 8
          for (int i = 0; i < kVectors; ++i) {
            sums[pair][i] = _mm512_fmadd_ph(weight, channels[i], sums[pair][i]);
          }
        }
      }
    }
    const int left = block.head_dim - part.channel;
#pragma GCC unroll 4
    for (int pair = 0; pair < kPairs; ++pair) {
      const int of = part.pair + pair;
      const __m512 keep = _mm512_set1_ps(block.corrections[of]);
      const __m512 step = _mm512_set1_ps(block.weight_steps[of]);
      float* values = block.values + int64_t{of} * block.head_dim + part.channel;
      if (left >= kVectors * 2 * kLanes) {
#pragma GCC unroll 8
        for (int i = 0; i < kVectors; ++i) {
          add_sums(values + i * 2 * kLanes, keep, sums[pair][i], step);
        }
      } else {
        add_some_sums<kVectors>(values, left, keep, sums[pair], step);
      }
    }
  }
  TESSERA_FP16_INLINE static void add_sums(float* values, __m512 keep, __m512h sum, __m512 step) {
    const __m512i halves = _mm512_castph_si512(sum);
    const __m512 low = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
    const __m512 high = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
    const __m512 kept_low = _mm512_mul_ps(_mm512_loadu_ps(values), keep);
    const __m512 kept_high = _mm512_mul_ps(_mm512_loadu_ps(values + kLanes), keep);
    _mm512_storeu_ps(values, _mm512_fmadd_ps(low, step, kept_low));
    _mm512_storeu_ps(values + kLanes, _mm512_fmadd_ps(high, step, kept_high));
  }
  // Like add_sums, for the first `count` channels only.
  template <int kVectors>
  TESSERA_FP16 static void add_some_sums(float* values, int count, __m512 keep,
                                         const __m512h (&sums)[kVectors], __m512 step) {
    alignas(64) f16 halves[kVectors * 2 * kLanes];
    for (int i = 0; i < kVectors; ++i) {
      _mm512_store_ph(halves + i * 2 * kLanes, sums[i]);
    }
    for (int i = 0; i < count; i += kHeadDimMultiple) {
      const Lanes kept = Lanes::load_half(values + i) * Lanes{keep};
      Lanes::fma(Lanes::load_half_f16(halves + i), Lanes{step}, kept).store_half(values + i);
    }
  }

  template <class From>
  static void add_pairs(PairBlock& block, const Part& part, const From& from, LineFetch fetch) {
    using Add = void (*)(PairBlock&, const Part&, From, LineFetch);
    static constexpr Add kAdd[4] = {add_part<1, From>, add_part<2, From>, add_part<3, From>,
                                    add_part<4, From>};
    kAdd[std::min(block.pairs - part.pair, 4) - 1](block, part, from, fetch);
  }

  // Tokens that fit registers go there straight from the page. Otherwise the tile is expanded once
  // for all passes.
  template <class T>
  static void add(PairBlock& block, const TileStep& step, LineFetch fetch) {
    const Packed packed = Sparse::pack(block, sparse_values(step.tile.shape->layout),
                                       step.tile.values, step.begin, step.end);
    Part part{step.begin, step.end, 0, 0};
    if (packed.words <= 2 && block.pairs <= 4) {
      packed.words == 1 ? add_pairs(block, part, FromPage<T, 1>{packed, {}}, fetch)
                        : add_pairs(block, part, FromPage<T, 2>{packed, {}}, fetch);
      return;
    }
    expand_tile<T>(packed, part, block.expanded, fetch);
    const int64_t stride = packed.words * kWordBytes;
    for (; part.pair < block.pairs; part.pair += 4) {
      for (part.channel = 0; part.channel < block.head_dim; part.channel += 2 * kWord) {
        const std::byte* at = block.expanded + part.channel * 2;
        block.head_dim - part.channel > kWord ? add_pairs(block, part, Expanded<2>{at, stride}, {})
                                              : add_pairs(block, part, Expanded<1>{at, stride}, {});
      }
    }
  }
  template <class T>
  TESSERA_FP16 static void expand_tile(const Packed& packed, const Part& part, std::byte* out,
                                       LineFetch fetch) {
    for (int token = part.begin; token < part.end; ++token) {
      const std::byte* kept = tokens_from(packed, token).kept;
      const std::byte* bitmap = tokens_from(packed, token).bitmap;
      for (int i = 0; i < packed.words; ++i, out += kWordBytes) {
        uint64_t bits;
        __builtin_memcpy(&bits, bitmap + 8 * i, sizeof(bits));
        __m512h first;
        __m512h second;
        load_word<T>(kept, bits, first, second);
        _mm512_store_ph(out, first);
        _mm512_store_ph(out + kWord, second);
        kept += __builtin_popcountll(bits) * sizeof(T);
      }
      if (token % kTokens == 0) {
        fetch.some();
      }
    }
  }
};

}  // namespace tessera::avx512
