#pragma once

#include "kernels/kv/kv_policy.h"

namespace tessera {

// Returns: LeanKV with the paper's numbers, with which about half of a prompt's tokens change their
// tier. The numbers of the server's preset are searched for quality (eval/search_policy.py), and
// timings must not change with them.
inline KvPolicy paper_leankv() {
  KvPolicy policy;
  policy.high = kKvK8V4;
  policy.low = kKvK4V2;
  policy.scorer = KvScorer::mean;
  policy.score_window = 64;
  policy.keep = KeepByThresholds{.alpha_high = 1, .alpha_low = 0};
  return policy;
}

}  // namespace tessera
