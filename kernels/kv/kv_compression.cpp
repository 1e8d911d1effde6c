#include "kernels/kv/kv_compression.h"

#include <algorithm>
#include <limits>

namespace tessera {

KvScoring scoring_of(const KvPolicy& policy, int32_t prompt_tokens) {
  KvScoring scoring{.token_scores = policy.needs_token_scores(),
                    .scorer = policy.scorer,
                    .query_sums = policy.key_score == KvKeyScore::output_aware};
  if (policy.is_lossy() && policy.scorer != KvScorer::none) {
    const bool all = policy.score_window == 0;
    scoring.begin = all ? 0 : std::max(0, prompt_tokens - policy.score_window);
    scoring.end = policy.compress_generated ? std::numeric_limits<int32_t>::max() : prompt_tokens;
  }
  return scoring;
}

}  // namespace tessera
