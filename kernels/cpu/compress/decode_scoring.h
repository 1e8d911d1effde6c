#pragma once

#include <cstdint>
#include <span>

#include "base/check.h"
#include "kernels/cpu/compress/tile_scores.h"

namespace tessera {

// One decode query: converts the weights that attention left to received attention.
class DecodeScoring {
 public:
  DecodeScoring(const AttentionKernels& kernels, const RowTokens& tokens, const RowScores& scores,
                std::span<const float> left)
      : kernels_(kernels), tokens_(tokens), scores_(scores), left_(left) {
    for (int32_t head = 0; head < scores.heads(); ++head) {
      log2_sums_[head] = scores.log_divisor(scores.begin(), head) * kLog2OfE;
    }
    TESSERA_CHECK(tokens.tiles() * tile_floats() <= std::ssize(left), "kv_score: too few weights");
  }

  // Handles part `part` of `parts` of the row's tiles. One part handles all scores of a section,
  // which begin with its first query.
  void run(int64_t part, int64_t parts) {
    const int64_t tiles = tokens_.tiles();
    if (scores_.by_section()) {
      if (part > 0) {
        return;
      }
      parts = 1;
    }
    if (part + 1 == parts) {  // the last part has the tile of the new token
      scores_.make_token_scores();
    }
    for (int64_t tile = tiles * part / parts; tile < tiles * (part + 1) / parts; ++tile) {
      const float* weights = weights_of(tile);
      pay(weights, weights + maxima_place(), tile);
    }
  }

 private:
  int64_t maxima_place() const { return int64_t{scores_.heads()} * kAttentionTile; }
  int64_t tile_floats() const { return attention_weight_tile_floats(scores_.heads()); }
  const float* weights_of(int64_t tile) const { return left_.data() + tile * tile_floats(); }
  TileTokenScores token_scores(int64_t tile) const {
    return token_scores_of(scores_, tokens_, static_cast<int32_t>(tile), scores_.begin());
  }
  void pay(const float* weights, const float* maxima, int64_t tile) const {
    tessera::pay(kernels_, scores_, token_scores(tile),
                 {.weights = weights, .maxima = maxima, .log2_sums = log2_sums_});
  }

  const AttentionKernels& kernels_;
  const RowTokens& tokens_;
  const RowScores& scores_;
  const std::span<const float> left_;
  float log2_sums_[kMaxScoredHeads + kPadding] = {};
};

}  // namespace tessera
