#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/compress/row_scores.h"
#include "kernels/cpu/tiles/pair_block.h"

namespace tessera {

// Scores of the tokens of a tile that the query at `position` sees.
struct TileTokenScores {
  KvTokenScore* first;
  bool descending;
  int32_t tokens;
  int32_t skipped = 0;  // first tokens of the tile, without scores
};

// The tokens of a tile that belong to the section.
inline TileTokenScores section_scores_of(const RowScores& scores, int32_t tile) {
  const int32_t place = tile * kAttentionTile;
  const int32_t begin = std::max(place, scores.section_first());
  const int32_t end =
      std::min(place + kAttentionTile, scores.section_first() + scores.scoring().section);
  return begin < end
             ? TileTokenScores{&scores.high_token_score(begin), false, end - begin, begin - place}
             : TileTokenScores{nullptr, false, 0};
}

inline TileTokenScores token_scores_of(const RowScores& scores, const RowTokens& tokens,
                                       int32_t tile, int32_t position) {
  if (scores.by_section()) {
    return section_scores_of(scores, tile);
  }
  const int32_t high_tiles = tokens.high_tiles();
  if (tile + 1 == tokens.tiles()) {
    const int32_t group = position / kKvGroup * kKvGroup;
    return {&scores.token_score_of(group), false, position + 1 - group};
  }
  const bool high = tile < high_tiles;
  const int32_t place = (high ? tile : tile - high_tiles) * kAttentionTile;
  return {high ? &scores.high_token_score(place) : &scores.low_token_score(place), !high,
          std::min(kAttentionTile, (high ? tokens.high : tokens.low) - place)};
}

// Vectors may read beyond the last number of an array.
inline constexpr int32_t kPadding = 16;

// Adds the attention of one query's heads to the token scores of a tile.
inline void pay(const AttentionKernels& kernels, const RowScores& scores,
                const TileTokenScores& token_scores, ReceivedAttention step) {
  if (token_scores.tokens == 0) {
    return;
  }
  step.weights += token_scores.skipped;
  step.heads = scores.heads();
  step.scorer = scores.scoring().scorer;
  step.tokens = token_scores.tokens;
  (token_scores.descending ? kernels.add_attention_descending : kernels.add_attention)(
      step, token_scores.first);
}

}  // namespace tessera
