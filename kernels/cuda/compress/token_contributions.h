#pragma once

#include "kernels/cuda/attention/scores.h"
#include "kernels/cuda/attention/work.h"
#include "kernels/cuda/simt/simt.h"
#include "kernels/kv/kv_compression.h"
#include "kernels/ops/attention.h"

namespace tessera::cuda {

using namespace simt;

// Token scores of one (sequence, KV head). Those at the left end belong to the high tier, followed
// by the groups that hold the step's tokens. Those of the low tier are at the right end.
struct TokenScoreRow {
  KvTokenScore* token_scores;
  int32_t row_token_scores;
  int32_t before;  // high tokens before the step
  int32_t fresh;   // place of the step's first token
  int32_t left;    // end of the token scores at the left end
  int32_t low;
  // With KvScoring::section, only its tokens have scores: those at places [first, left).
  int32_t first = 0;
  bool by_section = false;
  bool begins = false;         // the step has the first query of the replay: scores are 0 before
  int32_t first_position = 0;  // of the section

  TESSERA_DEVICE int32_t left_tiles() const { return (left + kKvGroup - 1) / kKvGroup; }
  TESSERA_DEVICE int32_t tiles() const { return left_tiles() + (low + kKvGroup - 1) / kKvGroup; }
};
TESSERA_DEVICE TokenScoreRow token_score_row(const KvPagesView& pages, const SequenceSpan& span,
                                             const KvScoring& scoring, int64_t row) {
  const KvRow counts = pages.rows[row];
  const int32_t before = counts.high - (span.closed_after() - span.closed_before()) * kKvGroup;
  const int32_t fresh = before + span.context - span.closed_before() * kKvGroup;
  TokenScoreRow scored{.token_scores = pages.token_score_row(row),
                       .row_token_scores = pages.row_token_scores,
                       .before = before,
                       .fresh = fresh,
                       .left = fresh + span.count,
                       .low = counts.low};
  if (scoring.section > 0) {
    scored.left = counts.high - (span.closed_after() * kKvGroup - scoring.begin);
    scored.low = 0;
    scored.first = scored.left - scoring.section;
    scored.by_section = true;
    scored.begins = span.context == scoring.begin;
    scored.first_position = scoring.begin - scoring.section;
  }
  return scored;
}

// One float as the vector of a scorer.
struct RoundedFloat {
  float value;

  TESSERA_BOTH static RoundedFloat fma(RoundedFloat a, RoundedFloat b, RoundedFloat c) {
    return {c.value + a.value * b.value};
  }
  TESSERA_BOTH static RoundedFloat max(RoundedFloat a, RoundedFloat b) {
    return {a.value > b.value ? a.value : b.value};
  }
  friend TESSERA_BOTH RoundedFloat operator+(RoundedFloat a, RoundedFloat b) {
    return {a.value + b.value};
  }
  friend TESSERA_BOTH RoundedFloat operator*(RoundedFloat a, RoundedFloat b) {
    return {a.value * b.value};
  }
};

// Returns: attention of a query head to a token, from its score.
TESSERA_DEVICE float attention_of(float score, float log_sum) {
  return exp2(fma(-kLog2E, log_sum, score));
}

// Returns: contribution of one query head with attention `a` to a token's score.
TESSERA_DEVICE float contribution_of(float a, KvScorer scorer) {
  return with_scorer(scorer, [&](auto type) {
    return decltype(type)::add_head(RoundedFloat{0}, RoundedFloat{a}, RoundedFloat{1}).value;
  });
}

// Returns: contributions of all heads so far, with one more.
TESSERA_DEVICE float joined(KvScorer scorer, float received, float contribution) {
  return with_scorer(scorer, [&](auto type) {
    if constexpr (decltype(type)::kMaximum) {
      return received > contribution ? received : contribution;
    } else {
      return received + contribution;
    }
  });
}

// Returns: a token's score after one query. received: the contributions of all heads. `heads`:
// gqa_ratio.
TESSERA_DEVICE float score_after_query(KvScorer scorer, int32_t heads, float score,
                                       float received) {
  return with_scorer(scorer, [&](auto type) {
    using Scorer = decltype(type);
    if constexpr (Scorer::kMaximum) {
      return score_after<Scorer>(score, received);
    } else {
      return fma(Scorer::share(heads), received, score);
    }
  });
}

}  // namespace tessera::cuda
