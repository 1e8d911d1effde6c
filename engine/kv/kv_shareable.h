#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/kv/kv_policy.h"

namespace tessera {

// Returns: number of first tokens of the prompt that a sequence of this policy may take from the
// prefix cache. It computes the last ones itself: scores need their queries, and the residual
// buffer needs their unquantised form.
constexpr int32_t shareable_tokens(const KvPolicy& policy, int32_t prompt_tokens) {
  int32_t own = std::max(0, policy.newest_dense() - 1);  // tokens that the sequence must compute
  if (policy.key_score == KvKeyScore::output_aware) {
    own = kKvGroup + prompt_tokens % kKvGroup;
  }
  if (policy.is_private() && policy.scorer != KvScorer::none) {
    own = policy.score_window == 0 ? prompt_tokens : std::max(policy.score_window, own);
  }
  return std::max(0, prompt_tokens - own);
}

}  // namespace tessera
