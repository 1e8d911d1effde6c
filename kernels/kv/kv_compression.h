#pragma once

#include <cstdint>

#include "kernels/kv/kv_page.h"
#include "kernels/kv/kv_policy.h"
#include "kernels/kv/kv_pool.h"

namespace tessera {

// Selects the scored queries of a sequence: those whose attention is added to its token scores.
struct KvScoring {
  // True if the sequence's policy needs token scores; otherwise kv_score skips the sequence.
  bool token_scores = false;
  KvScorer scorer = KvScorer::none;
  int32_t begin = 0;  // queries at positions [begin, end) are scored
  int32_t end = 0;
  // Not 0: only the last `section` tokens before position `begin` have scores, those of the section
  // that is replayed. Their scores are 0 before the query at `begin` (KvPagesView::section_scores).
  int32_t section = 0;
  // True if the policy's key score needs KvPagesView::query_sums.
  bool query_sums = false;

  // Returns: true if the query at `position` is scored.
  constexpr bool includes(int32_t position) const {
    return token_scores && begin <= position && position < end;
  }
};

// Returns: the scoring of a sequence with `policy` and a prompt of `prompt_tokens` tokens.
KvScoring scoring_of(const KvPolicy& policy, int32_t prompt_tokens);

// One sequence to compress by `policy` (demote and drop tokens), in all layers and KV heads.
struct KvCompression {
  int32_t slot = 0;
  KvTiers tiers;
  KvPolicy policy;     // valid by policy_error(), with a lossy rule
  int32_t tokens = 0;  // stored tokens, the open group included
  int32_t prompt_tokens = 0;
  // Positions below were evaluated by an earlier call. 0 in the first call and after a hand-over.
  int32_t evaluated = 0;
  // Closed tokens behind `tokens`, at the end of each row, that are removed first: those of a
  // replay.
  int32_t forgotten = 0;
  // Not 0: only the last `section` tokens of each row are evaluated, and only they have scores
  // (KvPagesView::section_scores).
  int32_t section = 0;
  // True in the first call only: the prompt's scores are complete and are pooled.
  bool pool_scores = false;
  // Returns: `evaluated` for the next call: the position at which the recent groups begin.
  constexpr int32_t evaluated_after() const {
    const int32_t groups = tokens / kKvGroup - policy.recent;
    return groups > 0 ? groups * kKvGroup : 0;
  }
};

// Result for one sequence, over all layers and KV heads.
struct KvCompressed {
  int64_t pages_freed = 0;  // returned minus taken pages; at least -(layers * kv_heads)
  int64_t low_pages = 0;    // pages of its low tier after the call
  int64_t demoted = 0;      // tokens, counted for each layer and KV head
  int64_t dropped = 0;
};

}  // namespace tessera
