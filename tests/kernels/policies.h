#pragma once

#include <gtest/gtest.h>

#include <optional>

#include "kernels/kv/kv_policy.h"

namespace tessera {

inline KvPolicy preset(const char* name) {
  const std::optional<KvPreset> found = find_kv_preset(name);
  EXPECT_TRUE(found.has_value()) << name;
  return found->policy;
}

// A quarter of the tokens, by the sum of all queries' attention (H2O).
inline KvPolicy all_queries() {
  KvPolicy policy = preset("kv-compress");
  policy.scorer = KvScorer::sum;
  policy.score_window = 0;
  policy.score_pool = 1;
  policy.allocator = KvAllocator::uniform;
  return policy;
}

// Half of the tokens of each section, by the most attention in its replay (KVzip).
inline KvPolicy replaying() {
  KvPolicy policy = preset("replay-50");
  policy.scorer = KvScorer::replay;
  return policy;
}

// Fewer tokens than the preset leankv keeps.
inline KvPolicy strict_leankv() {
  KvPolicy policy = preset("leankv");
  policy.score_window = 8;
  policy.score_pool = 23;
  policy.alpha_high = 1000;
  policy.alpha_low = 6;
  return policy;
}

inline KvPolicy with_formats(KvPolicy policy, KvFormat high, KvFormat low) {
  policy.high = high;
  policy.low = low;
  EXPECT_EQ(policy_error(policy), "");
  return policy;
}

}  // namespace tessera
