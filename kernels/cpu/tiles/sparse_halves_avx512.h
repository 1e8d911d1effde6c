#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/tiles/half_scores_avx512.h"
#include "kernels/cpu/tiles/half_step.h"
#include "kernels/cpu/tiles/half_values_avx512.h"
#include "kernels/cpu/tiles/lane_softmax.h"

namespace tessera::avx512 {

// Attention over sparse tiles with AVX512-FP16. Expanded f16 are multiplied directly, 32 channels
// in an instruction. f32 would take conversions and twice the products. half_step.h states the
// precision. Keys of codes stay integers, as in SparseAttention. Values of codes become f16, which
// is exact.
// Requires: AVX512-FP16; otherwise as AttentionKernels.
struct SparseHalves {
  using Sparse = SparseAttention<SparseLanes>;
  using Softmax = LaneSoftmax<Lanes>;
  using Scores = HalfScores;
  static constexpr int kLanes = Lanes::kLanes;
  static constexpr int kKeyTile = KvPageLayout::kKeyTile;
  static constexpr int kTileVectors = kAttentionTile / kLanes;

  static void load_query_tokens(PairBlock& block, int32_t pair, const float* query, float factor) {
    Sparse::load_query_tokens(block, pair, query, factor);
    const int first = pair / Scores::kQuarters * Scores::kQuarters;
    f16* const halves = block.token_halves[first];
    if (pair == first) {  // quarters of missing pairs stay 0
      std::fill_n(halves, round_up(block.head_dim, Scores::kWord) * Scores::kQuarters, f16{});
      std::fill_n(block.half_steps + pair, Scores::kQuarters, 0.0f);
    }
    float largest = kMinLargest;
    for (int channel = 0; channel < block.head_dim; ++channel) {
      largest = std::max(largest, std::abs(query[channel] * factor));
    }
    const float range = half_query_range(block.head_dim);
    const float inverse = range / largest;
    block.half_steps[pair] = largest / range;
    for (int channel = 0; channel < block.head_dim; ++channel) {
      halves[Sparse::quarter_place(pair, channel, Scores::kUnit)] =
          to_f16(query[channel] * factor * inverse);
    }
  }

  static void score_tile(PairBlock& block, const TileStep& step) {
    const LineFetch fetch =
        Sparse::fetch_ahead(step.next == nullptr ? nullptr : step.next->keys,
                            step.next == nullptr ? 0 : step.next->shape->key_bytes);
    if (sparse_keys(step.tile.shape->layout).is_codes()) {
      Scores::score<Scores::CodeProduct>(block, step, fetch);
      Sparse::scale_scores(block, step.tile);
    } else {
      Scores::score<Scores::HalfProduct>(block, step, fetch);
    }
  }

  // Turns scores into weights, and weights (times the value scales if values are codes) into f16.
  // Each f16 is stored twice in 32 bits, so that a load alone broadcasts it.
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
      const Lanes bounded = Lanes::max(Lanes::all(kMinLargest), Lanes::highest(largest));
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

  static void add_tile(PairBlock& block, const TileStep& step) {
    score_tile(block, step);
    Softmax::raise_maxima<false>(block);
    const bool codes = sparse_values(step.tile.shape->layout).is_codes();
    weigh(block, step, codes);
    const LineFetch fetch =
        Sparse::fetch_ahead(step.next == nullptr ? nullptr : step.next->values,
                            step.next == nullptr ? 0 : step.next->shape->value_bytes);
    (codes ? HalfValues::add<int8_t> : HalfValues::add<f16>)(block, step, fetch);
  }
};

}  // namespace tessera::avx512
