#pragma once

#include <cstdint>

#include "kernels/kv/kv_compression.h"
#include "kernels/kv/row_function.h"
#include "kernels/kv/rules/budget.h"
#include "kernels/kv/score_pooling.h"
#include "kernels/kv/token_key.h"
#include "kernels/kv/token_row.h"

namespace tessera {

// Score of tokens that stand for others: above all sums of attention.
inline constexpr float kRepresentativeScore = 1e30f;

// Keeps windows that stand for dropped ones (KvPooling::representatives), as in "KVCrush: Key Value
// Cache Size-Reduction Using Similarity in Head-Behaviour" (2025), in its form for blocks of
// tokens. A window's pattern says which of its tokens are in the better half of the row. Of the
// windows that the rule would drop by their mean score, the pattern's distance from 0, 1, 0, 1, ...
// makes an order. One window of each of equal parts of that order gets kRepresentativeScore.
struct Representatives {
  static constexpr uint8_t kNoCandidate = 255;
  static_assert(kMaxScorePool < kNoCandidate, "a distance fits into a byte");

  // Replaces the scores of a row in its first compression. Besides the members for rules
  // (kernels/kv/kv_rules.h), Row has:
  //   tokens()              TokenRow
  //   key(place)            of the token at a place of the high tier
  //   scores(place)         the token scores from a place of the high tier on
  //   distance(window)      a byte for each window
  //   each_window(first, end, visit)   calls visit(window), for all before it returns
  //   each_ranked(first, end, visit)   calls visit(window, rank) for windows whose distance is not
  //                                    kNoCandidate: ranks are by distance, then by place
  //   windows(first, end, select)      number of windows for which select(window) is true
  // Requires: places are positions; the policy's pooling is `representatives`.
  template <class Row>
  TESSERA_ROW_FUNCTION void raise(const Row& row) {
    const KvCompression& sequence = row.sequence();
    const int32_t pool = sequence.policy.score_pool;
    const int32_t complete = sequence.prompt_tokens - sequence.policy.score_window;
    const int32_t seen = row.stored() < complete ? row.stored() : complete;
    // Windows of tokens that a rule may change, and that all counting queries saw.
    const TokenRow& tokens = row.tokens();
    const int32_t first_place = tokens.own_high > tokens.sinks ? tokens.own_high : tokens.sinks;
    const int32_t closed =
        tokens.counts.high < tokens.recent_from ? tokens.counts.high : tokens.recent_from;
    const int32_t first = (first_place + pool - 1) / pool;
    const int32_t end = (closed < seen ? closed : seen) / pool;
    const auto any = [](TokenAge, bool, TokenKey) { return true; };
    const BudgetRule::Room room = BudgetRule::room_of(row);
    const TokenKey better_half = row.cut_best(room.own / 2, any);
    row.each_window(first, end, [&](int32_t window) {
      int32_t distance = 0;
      for (int32_t i = 0; i < pool; ++i) {
        distance += (row.key(window * pool + i) >= better_half) != (i % 2 == 1) ? 1 : 0;
      }
      row.distance(window) = static_cast<uint8_t>(distance);
    });
    row.each_window(0, (seen + pool - 1) / pool, [&](int32_t window) {
      const int32_t place = window * pool;
      pool_window(row.scores(place), place + pool < seen ? pool : seen - place);
    });
    const int32_t kept_windows = room.keep / pool;
    const auto wanted = static_cast<int32_t>(sequence.policy.representative_share *
                                             static_cast<float>(kept_windows));
    const TokenKey important = row.cut_best(room.keep - wanted * pool, any);
    row.each_window(first, end, [&](int32_t window) {
      if (row.key(window * pool + pool - 1) >= important) {
        row.distance(window) = kNoCandidate;
      }
    });
    const int32_t candidates = row.windows(
        first, end, [&](int32_t window) { return row.distance(window) != kNoCandidate; });
    row.each_ranked(first, end, [&](int32_t window, int32_t rank) {
      if (begins_part(rank, candidates, wanted)) {
        for (int32_t i = 0; i < pool; ++i) {
          row.scores(window * pool)[i].score = kRepresentativeScore;
        }
      }
    });
  }

 private:
  // Returns: true for the first rank of each of `parts` equal parts of `ranks` ranks, and for every
  // rank if there are no more ranks than parts.
  static constexpr bool begins_part(int64_t rank, int64_t ranks, int64_t parts) {
    if (rank == 0 || parts >= ranks) {
      return parts > 0;
    }
    return rank * parts / ranks != (rank - 1) * parts / ranks;
  }
};

}  // namespace tessera
