#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cpu/compress/tile_scores.h"

namespace tessera {

// The softmax of a scorer that does not take attention's own (kOwnSoftmax), for the query at one
// position. It scales an attention weight by noise and takes it to the power 1 / temperature, so
// that sums of the results are the denominator.
class OwnSoftmax {
 public:
  OwnSoftmax(const KvScoring& scoring, int32_t layer, int32_t position)
      : scorer_(scoring.scorer),
        layer_(layer),
        position_(position),
        inverse_(1.0f / softmax_temperature(scorer_, scoring.generated(position))) {}

  // Returns: factor of the weights of the token at `token`, for all heads. At least 1, so that no
  // weight exceeds the denominator.
  float noise(int32_t token) const {
    return softmax_noise(scorer_, layer_, position_, token, [](float x) { return std::log(x); });
  }
  float reweighted(float weight, float noise) const {
    return inverse_ == 1.0f ? weight * noise : std::pow(weight * noise, inverse_);
  }
  // Returns: the logarithm of a common factor of weights, after reweighted().
  float scaled(float log) const { return log * inverse_; }

 private:
  KvScorer scorer_;
  int32_t layer_;
  int32_t position_;
  float inverse_;  // 1 / temperature
};

// The weights of one tile for the query heads of one KV head, as attention computes them, and the
// logarithms of the denominators. Not owned.
struct TileWeights {
  float* weights;       // [heads, kAttentionTile], relative to the maxima
  const float* maxima;  // [heads]
  float* log2_sums;     // [heads]
};

// Replaces the weights of a block of queries by those of its scorer's own softmax, in two passes
// over the tiles. Pair: place of a query's first head among the block's pairs.
class OwnSoftmaxPasses {
 public:
  OwnSoftmaxPasses(const RowScores& scores, int32_t layer) : scores_(scores), layer_(layer) {}

  // First pass: replaces the weights, and adds them to the denominators.
  void add(int32_t position, int32_t pair, const TileTokenScores& tokens, const TileWeights& tile) {
    const OwnSoftmax own(scores_.scoring(), layer_, position);
    reweigh(own, tokens, tile.weights);
    for (int32_t head = 0; head < scores_.heads(); ++head) {
      double sum = 0;
      for (int32_t token = 0; token < tokens.tokens; ++token) {
        sum += tile.weights[head * kAttentionTile + token];
      }
      sums_[pair + head] += sum * std::exp2(own.scaled(tile.maxima[head] - tile.log2_sums[head]));
    }
  }
  // Between the passes: replaces the logarithms of attention's denominators.
  void finish(int32_t position, int32_t pair, float* log2_sums) const {
    const OwnSoftmax own(scores_.scoring(), layer_, position);
    for (int32_t head = 0; head < scores_.heads(); ++head) {
      log2_sums[head] =
          own.scaled(log2_sums[head]) + static_cast<float>(std::log2(sums_[pair + head]));
    }
  }
  // Second pass: replaces the weights. Returns: their maxima, valid until the next call.
  const float* weigh(int32_t position, const TileTokenScores& tokens, float* weights,
                     const float* maxima) {
    const OwnSoftmax own(scores_.scoring(), layer_, position);
    reweigh(own, tokens, weights);
    for (int32_t head = 0; head < scores_.heads(); ++head) {
      maxima_[head] = own.scaled(maxima[head]);
    }
    return maxima_;
  }

 private:
  void reweigh(const OwnSoftmax& own, const TileTokenScores& tokens, float* weights) const {
    for (int32_t token = 0; token < tokens.tokens; ++token) {
      const float noise = own.noise(tokens.first[tokens.descending ? -token : token].position);
      for (int32_t head = 0; head < scores_.heads(); ++head) {
        float& weight = weights[head * kAttentionTile + token];
        weight = own.reweighted(weight, noise);
      }
    }
  }

  const RowScores& scores_;
  const int32_t layer_;
  double sums_[PairBlock::kPairs] = {};
  float maxima_[kMaxScoredHeads + kPadding] = {};
};

}  // namespace tessera
