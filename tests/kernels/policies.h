#pragma once

#include <gtest/gtest.h>

#include <string>

#include "kernels/kv/kv_policy.h"

// Policies of each scorer, allocator and rule.
namespace tessera {

inline KvPolicy budget_of(KvScorer scorer, float keep_share) {
  KvPolicy policy;
  policy.scorer = scorer;
  policy.keep = KeepBudget{.amount = KvAmount::of_share(keep_share)};
  return policy;
}

inline KvPolicy leankv() {
  KvPolicy policy;
  policy.high = kKvK8V4;
  policy.low = kKvK4V2;
  policy.scorer = KvScorer::mean;
  policy.score_window = 16;
  policy.score_pool = 31;
  policy.keep = KeepByThresholds{.alpha_high = 8, .alpha_low = 0.3f};
  return policy;
}

// Keeps fewer tokens.
inline KvPolicy strict_leankv() {
  KvPolicy policy = leankv();
  policy.score_window = 8;
  policy.score_pool = 23;
  policy.keep = KeepByThresholds{.alpha_high = 1000, .alpha_low = 6};
  return policy;
}

// A quarter of the tokens, by the sum of all queries' attention (H2O).
inline KvPolicy all_queries() {
  KvPolicy policy = budget_of(KvScorer::sum, 0.25f);
  policy.score_window = 0;
  return policy;
}

inline KvPolicy kv_compress() {
  KvPolicy policy = budget_of(KvScorer::squares, 0.25f);
  policy.score_window = 8;
  policy.score_pool = 7;
  policy.budget().allocator = KvAllocator::pages;
  return policy;
}

inline KvPolicy snapkv() {
  KvPolicy policy = budget_of(KvScorer::mean, 0.25f);
  policy.score_window = 32;
  policy.score_pool = 7;
  policy.compress_generated = false;
  return policy;
}

inline KvPolicy streaming() {
  return budget_of(KvScorer::none, 0.25f);
}

// Prunes the channels of every token that is not recent (MUSTAFAR).
inline KvPolicy mustafar() {
  KvPolicy policy = budget_of(KvScorer::none, 1);
  policy.low = kKvS70;
  policy.budget().high_share = 0;
  policy.sinks = 0;
  return policy;
}

// Half of the rows keep everything.
inline KvPolicy retrieving() {
  KvPolicy policy = budget_of(KvScorer::none, 1);
  policy.high = kKvK8V4;
  policy.low = kKvK8V4;
  policy.budget().allocator = KvAllocator::retrieval;
  policy.budget().amount = KvAmount::of_tokens(256);
  return policy;
}

// Half of the tokens of each section, by the most attention in its replay (KVzip).
inline KvPolicy replaying() {
  KvPolicy policy = budget_of(KvScorer::replay, 0.5f);
  policy.high = kKvK8V4;
  policy.low = kKvK8V4;
  policy.score_window = 0;
  policy.budget().allocator = KvAllocator::pages;
  return policy;
}

// Returns: the rule and the allocator of a policy, for the traces of tests.
inline std::string rule_text(const KvPolicy& policy) {
  std::string text(name_of(policy.rule()));
  return policy.keep.is<KeepBudget>()
             ? text.append(" by ").append(name_of(policy.budget().allocator))
             : text;
}

inline KvPolicy with_formats(KvPolicy policy, KvFormat high, KvFormat low) {
  policy.high = high;
  policy.low = low;
  EXPECT_EQ(policy_error(policy), "");
  return policy;
}

}  // namespace tessera
