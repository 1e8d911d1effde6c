#pragma once

#include "kernels/kv/kv_policy.h"

namespace tessera {

// Returns: the preset `leankv` with the paper's numbers, with which about half of a prompt's tokens
// change their tier. The preset's own numbers are searched for quality (eval/search_policy.py), and
// timings must not change with them.
inline KvPolicy paper_leankv() {
  KvPolicy policy = find_kv_preset("leankv")->policy;
  policy.score_window = 64;
  policy.score_pool = 1;
  policy.alpha_high = 1;
  policy.alpha_low = 0;
  return policy;
}

}  // namespace tessera
