#include "kernels/cpu/compress/rules.h"

#include <cmath>

#include "kernels/check.h"

namespace tessera {
namespace {

// Returns: the cutoff that exactly the best `count` of `keys` reach. Reorders `keys`.
TokenKey cut_above_worst(std::span<TokenKey> keys, int64_t count) {
  if (count <= 0) {
    return kAboveAllKeys;
  }
  if (count >= std::ssize(keys)) {
    return kLowestKey;
  }
  const auto last = keys.end() - count;
  std::nth_element(keys.begin(), last, keys.end());
  return *last;
}

// Returns: the cutoff below which exactly the worst `count` of `keys` are. Reorders `keys`.
TokenKey cut_off_worst(std::span<TokenKey> keys, int64_t count) {
  return cut_above_worst(keys, std::ssize(keys) - count);
}

// Sum of all scores of the row; thresholds and mass are shares of it. A mean is a share already.
double total_score(const RuleInput& input) {
  if (is_mean_over_queries(input.sequence.policy.scorer)) {
    return 1;
  }
  double total = 0;
  for (int32_t i = 0; i < input.row.counts.high + input.row.open; ++i) {
    total += input.row.high_token_score(i).score;
  }
  for (int32_t j = 0; j < input.row.counts.low; ++j) {
    total += input.row.low_token_score(j).score;
  }
  return total;
}

}  // namespace

RowCutoffs cutoffs_by_thresholds(const RuleInput& input) {
  const KvPolicy& policy = input.sequence.policy;
  const double mean_score = total_score(input) / input.sequence.tokens;
  const TokenKey low = key_of(static_cast<float>(policy.alpha_low * mean_score), 0);
  const TokenKey high =
      policy.has_low_tier() ? key_of(static_cast<float>(policy.alpha_high * mean_score), 0) : low;
  // Possible victims: old high tokens from the left of `keys`, old low tokens from the right.
  std::span<TokenKey> keys = input.keys;
  int64_t high_victims = 0;
  int64_t low_victims = 0;
  int64_t went_high = 0;
  int64_t went_low = 0;
  input.row.for_each_own_high([&](const KvTokenScore& token_score, TokenAge age) {
    const TokenKey key = input.significance.key(token_score);
    if (age == TokenAge::fresh) {
      went_high += key >= high ? 1 : 0;
      went_low += key >= low && key < high ? 1 : 0;
    } else if (key < high) {
      keys[static_cast<size_t>(high_victims++)] = key;
    }
  });
  if (low > kLowestKey) {
    input.row.for_each_own_low([&](const KvTokenScore& token_score) {
      const TokenKey key = input.significance.key(token_score);
      if (key < low) {
        keys[keys.size() - static_cast<size_t>(++low_victims)] = key;
      }
    });
  }
  const auto high_keys = keys.first(static_cast<size_t>(high_victims));
  const auto low_keys = keys.last(static_cast<size_t>(low_victims));
  RowCutoffs cutoffs{.fresh_high = high, .fresh_low = low};
  // If every candidate has a victim of its own, all old tokens below the threshold leave.
  cutoffs.old_high = went_high >= high_victims ? high : cut_off_worst(high_keys, went_high);
  cutoffs.old_floor = low;
  cutoffs.old_low = went_low >= low_victims ? low : cut_off_worst(low_keys, went_low);
  return cutoffs;
}

RowCutoffs cutoffs_by_budget(const RuleInput& input) {
  const KvPolicy& policy = input.sequence.policy;
  size_t own = 0;
  input.row.for_each_own([&](const KvTokenScore& token_score, TokenAge) {
    input.keys[own++] = input.significance.key(token_score);
  });
  const std::span<TokenKey> keys = input.keys.first(own);
  const int64_t kept_anyway =
      int64_t{input.row.counts.high} + input.row.counts.low + input.row.open - std::ssize(keys);
  const int64_t keep = std::clamp<int64_t>(input.budget - kept_anyway, 0, std::ssize(keys));
  RowCutoffs cutoffs;
  cutoffs.fresh_low = cut_above_worst(keys, keep);
  cutoffs.fresh_high = cutoffs.fresh_low;
  if (policy.has_low_tier()) {
    const auto high = static_cast<int64_t>(std::llround(double{policy.high_share} * input.budget));
    cutoffs.fresh_high = cut_above_worst(keys, std::clamp<int64_t>(high - kept_anyway, 0, keep));
  }
  cutoffs.old_high = cutoffs.fresh_high;
  cutoffs.old_floor = cutoffs.fresh_low;
  cutoffs.old_low = cutoffs.fresh_low;
  return cutoffs;
}

RowCutoffs cutoffs_by_mass(const RuleInput& input) {
  const KvPolicy& policy = input.sequence.policy;
  size_t fresh = 0;
  double fresh_mass = 0;
  input.row.for_each_own([&](const KvTokenScore& token_score, TokenAge age) {
    if (age == TokenAge::fresh) {
      input.keys[fresh++] = input.significance.key(token_score);
      fresh_mass += input.significance.of(token_score);
    }
  });
  const std::span<TokenKey> keys = input.keys.first(fresh);
  std::sort(keys.begin(), keys.end());
  const double mass = input.sequence.evaluated == 0 ? total_score(input) : fresh_mass;
  const double may_drop = (1.0 - double{policy.mass_keep}) * mass;
  const double may_lower = (1.0 - double{policy.mass_high}) * mass;
  RowCutoffs cutoffs;
  cutoffs.fresh_low = may_drop > 0 ? kAboveAllKeys : kLowestKey;
  cutoffs.fresh_high = may_lower > 0 ? kAboveAllKeys : kLowestKey;
  double below = 0;
  for (const TokenKey key : keys) {
    below += significance_of(key);
    if (cutoffs.fresh_low == kAboveAllKeys && below > may_drop) {
      cutoffs.fresh_low = key;
    }
    if (below > may_lower && may_lower > 0) {
      cutoffs.fresh_high = key;
      break;
    }
  }
  if (!policy.has_low_tier()) {
    cutoffs.fresh_high = cutoffs.fresh_low;
  }
  return cutoffs;
}

RowCutoffs cutoffs_of(const RuleInput& input) {
  switch (input.sequence.policy.rule) {
    case KvRule::thresholds:
      return cutoffs_by_thresholds(input);
    case KvRule::budget:
      return cutoffs_by_budget(input);
    case KvRule::mass:
      return cutoffs_by_mass(input);
    case KvRule::keep_all:
      break;
  }
  TESSERA_CHECK(false, "kv_compress: a policy that compresses nothing");
  return {};
}

}  // namespace tessera
