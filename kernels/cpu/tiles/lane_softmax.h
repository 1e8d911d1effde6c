#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/simd/exponential.h"
#include "kernels/cpu/tiles/pair_block.h"

namespace tessera {

static_assert(sizeof(KvTokenScore) == 8 && offsetof(KvTokenScore, score) == 0);

// Online softmax over a vector type V, between a tile's scores and its values, with the finish and
// the merge of splits.
template <class V>
struct LaneSoftmax {
  static constexpr int kLanes = V::kLanes;
  static constexpr int kKeyTile = KvPageLayout::kKeyTile;
  static constexpr int kTileVectors = kAttentionTile / kLanes;

  // Returns: `x` for the tokens of vector `i` that the pair sees, `fallback` for the others.
  // `whole`: the pair sees the whole tile.
  static V seen(const PairBlock& block, bool whole, int pair, int i, V x, V fallback) {
    return whole ? x
                 : x.where(static_cast<uint32_t>(block.visible[pair] >> (i * kLanes)), fallback);
  }

  // Raises each pair's maximum to the tile's scores and computes the correction of its earlier
  // sums. It handles 4 pairs at once: a store is then at least as wide as the later load, which
  // need not wait for the cache.
  template <bool kWhole>
  static void raise_maxima(PairBlock& block) {
    raise_maxima<kWhole>(block, 0, block.pairs);
  }
  // The same for pairs [begin, end).
  // Requires: `begin` is a multiple of 4.
  template <bool kWhole>
  static void raise_maxima(PairBlock& block, int begin, int end) {
    for (int first = begin; first < end; first += 4) {
      V highest[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const int pair = first + j;  // pairs beyond the last keep their old values
        const float* scores = block.weights + pair * kAttentionTile;
        highest[j] = V::all(block.maxima[pair]);
        if (pair < end) {
#pragma GCC unroll 8
          for (int i = 0; i < kTileVectors; ++i) {
            const V score = V::load(scores + i * kLanes);
            highest[j] = V::max(highest[j], seen(block, kWhole, pair, i, score, highest[j]));
          }
        }
      }
      const V raised = V::highest(highest);
      exp2_nonpositive(V::load_4(block.maxima + first) - raised).store_4(block.corrections + first);
      raised.store_4(block.maxima + first);
    }
  }

  // A token score has a score and a position, so 2 vectors of token scores have the scores of one
  // vector.
  template <bool kDescending>
  static void add_attention(const ReceivedAttention& step, KvTokenScore* token_scores) {
    with_scorer(step.scorer, [&](auto scorer) {
      add_scores<decltype(scorer), kDescending>(step, token_scores);
    });
  }
  template <class Scorer, bool kDescending>
  static void add_scores(const ReceivedAttention& step, KvTokenScore* token_scores) {
    alignas(64) float factors[kMaxScoredHeads];
    static_assert(kMaxScoredHeads % kLanes == 0);
    for (int32_t head = 0; head < step.heads; head += kLanes) {
      exp2_nonpositive(V::load(step.maxima + head) - V::load(step.log2_sums + head))
          .store(factors + head);
    }
    for (int32_t token = 0; token < step.tokens; token += kLanes) {
      V sum = V::zero();
      for (int32_t head = 0; head < step.heads; ++head) {
        const V weight = V::load(step.weights + head * kAttentionTile + token);
        sum = Scorer::add_head(sum, weight, V::all(factors[head]));
      }
      sum = sum * V::all(Scorer::share(step.heads));
      if (!Scorer::kMaximum && token + kLanes <= step.tokens) {
        KvTokenScore* lowest =
            kDescending ? token_scores - token - (kLanes - 1) : token_scores + token;
        (kDescending ? sum.reversed() : sum).add_to_even(reinterpret_cast<float*>(lowest));
      } else {
        alignas(64) float sums[kLanes];
        sum.store(sums);
        for (int32_t i = 0; i < kLanes && token + i < step.tokens; ++i) {
          KvTokenScore& of =
              (kDescending ? token_scores - token : token_scores + token)[kDescending ? -i : i];
          of.score = score_after<Scorer>(of.score, sums[i]);
        }
      }
    }
  }

  // Rescales the sums of zeros to the new maximum, for a tile that adds nothing to them.
  static void raise_zeros(PairBlock& block, int pair) {
    float* zeros = block.zeros + pair * kKeyTile;
    (V::load(zeros) * V::all(block.corrections[pair])).store(zeros);
  }

  // Computes the weights of one pair from its scores; `take(i, weight)` receives each vector.
  template <bool kWhole, class Take>
  static void weigh_pair(PairBlock& block, int pair, Take&& take) {
    const float* scores = block.weights + pair * kAttentionTile;
    const V maximum = V::all(block.maxima[pair]);
    V added = V::zero();
#pragma GCC unroll 8
    for (int i = 0; i < kTileVectors; ++i) {
      const V power = exp2_nonpositive(V::load(scores + i * kLanes) - maximum);
      const V weight = seen(block, kWhole, pair, i, power, V::zero());
      take(i, weight);
      added = added + weight;
    }
    float* sums = block.sums + pair * kKeyTile;
    V::fma(V::load(sums), V::all(block.corrections[pair]), added).store(sums);
  }

  // Turns scores into weights. If `left` is not null, weights and maxima are also written there.
  static void weigh(PairBlock& block, float* left) {
    for (int pair = 0; pair < block.pairs; ++pair) {
      float* weights = block.weights + pair * kAttentionTile;
      weigh_pair<false>(block, pair, [&](int i, V weight) { weight.store(weights + i * kLanes); });
      raise_zeros(block, pair);
    }
    if (left != nullptr) {
      std::copy_n(block.weights, block.pairs * kAttentionTile, left);
      leave_maxima(block, left);
    }
  }
  static void leave_maxima(const PairBlock& block, float* left) {
    std::copy_n(block.maxima, block.pairs, left + block.pairs * kAttentionTile);
  }

  static void finish(const PairBlock& block, int32_t pair, const Partial& out) {
    const V zero = V::all(V::load(block.zeros + pair * kKeyTile).sum());
    const float* values = block.values + int64_t{pair} * block.head_dim;
    *out.maximum = block.maxima[pair];
    *out.sum = V::load(block.sums + pair * kKeyTile).sum();
    int32_t channel = 0;
    for (; channel + kLanes <= block.head_dim; channel += kLanes) {
      (V::load(values + channel) + zero).store(out.values + channel);
    }
    if (channel < block.head_dim) {
      (V::load_half(values + channel) + zero).store_half(out.values + channel);
    }
  }

  static void merge(const Partial& into, const Partial& from, int32_t head_dim) {
    const float highest = *from.maximum > *into.maximum ? *from.maximum : *into.maximum;
    const V keep = exp2_nonpositive(V::all(*into.maximum - highest));
    const V take = exp2_nonpositive(V::all(*from.maximum - highest));
    *into.maximum = highest;
    *into.sum = V::fma(V::all(*from.sum), take, V::all(*into.sum) * keep).first();
    int32_t channel = 0;
    for (; channel + kLanes <= head_dim; channel += kLanes) {
      const V kept = V::load(into.values + channel) * keep;
      V::fma(V::load(from.values + channel), take, kept).store(into.values + channel);
    }
    if (channel < head_dim) {
      const V kept = V::load_half(into.values + channel) * keep;
      V::fma(V::load_half(from.values + channel), take, kept).store_half(into.values + channel);
    }
  }

  // Adding 0 turns -0 into +0. Otherwise the sign of a sum of zeros would depend on the number of
  // masked tokens in it.
  static void normalise(float* values, float sum, int32_t head_dim) {
    for (int32_t channel = 0; channel < head_dim; channel += kHeadDimMultiple) {
      (V::load_half(values + channel) / V::all(sum) + V::zero()).store_half(values + channel);
    }
  }
};

}  // namespace tessera
