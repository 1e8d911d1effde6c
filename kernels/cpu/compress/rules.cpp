#include "kernels/cpu/compress/rules.h"

#include <cmath>

#include "kernels/check.h"

namespace tessera {
namespace {

// The key that the best `count` of `keys` reach, and no other. Reorders them.
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

// The key below which exactly the worst `count` stand.
TokenKey cut_off_worst(std::span<TokenKey> keys, int64_t count) {
  return cut_above_worst(keys, std::ssize(keys) - count);
}

// The sum of everybody's scores: what thresholds and mass are shares of. A mean is a share already.
double total_score(const RuleInput& input) {
  if (input.sequence.policy.scorer == KvScorer::mean) {
    return 1;
  }
  double total = 0;
  for (int32_t i = 0; i < input.row.counts.high + input.row.open; ++i) {
    total += input.row.high_mark(i).score;
  }
  for (int32_t j = 0; j < input.row.counts.low; ++j) {
    total += input.row.low_mark(j).score;
  }
  return total;
}

}  // namespace

RowCuts cuts_by_thresholds(const RuleInput& input) {
  const KvPolicy& policy = input.sequence.policy;
  const double unit = total_score(input) / input.sequence.tokens;
  const TokenKey low = key_of(static_cast<float>(policy.alpha_low * unit), 0);
  const TokenKey high =
      policy.has_low_tier() ? key_of(static_cast<float>(policy.alpha_high * unit), 0) : low;
  // Victims that may be: old high tokens from the left, old low ones from the right.
  std::span<TokenKey> keys = input.keys;
  int64_t high_victims = 0;
  int64_t low_victims = 0;
  int64_t went_high = 0;
  int64_t went_low = 0;
  input.row.for_each_own_high([&](const KvMark& mark, TokenAge age) {
    const TokenKey key = input.significance.key(mark);
    if (age == TokenAge::fresh) {
      went_high += key >= high ? 1 : 0;
      went_low += key >= low && key < high ? 1 : 0;
    } else if (key < high) {
      keys[static_cast<size_t>(high_victims++)] = key;
    }
  });
  if (low > kLowestKey) {
    input.row.for_each_own_low([&](const KvMark& mark) {
      const TokenKey key = input.significance.key(mark);
      if (key < low) {
        keys[keys.size() - static_cast<size_t>(++low_victims)] = key;
      }
    });
  }
  const auto high_keys = keys.first(static_cast<size_t>(high_victims));
  const auto low_keys = keys.last(static_cast<size_t>(low_victims));
  RowCuts cuts{.fresh_high = high, .fresh_low = low};
  // Where every candidate has a victim of its own, all below the threshold go.
  cuts.old_high = went_high >= high_victims ? high : cut_off_worst(high_keys, went_high);
  cuts.old_floor = low;
  cuts.old_low = went_low >= low_victims ? low : cut_off_worst(low_keys, went_low);
  return cuts;
}

RowCuts cuts_by_budget(const RuleInput& input) {
  const KvPolicy& policy = input.sequence.policy;
  size_t own = 0;
  input.row.for_each_own(
      [&](const KvMark& mark, TokenAge) { input.keys[own++] = input.significance.key(mark); });
  const std::span<TokenKey> keys = input.keys.first(own);
  const int64_t kept_anyway =
      int64_t{input.row.counts.high} + input.row.counts.low + input.row.open - std::ssize(keys);
  const int64_t keep = std::clamp<int64_t>(input.budget - kept_anyway, 0, std::ssize(keys));
  RowCuts cuts;
  cuts.fresh_low = cut_above_worst(keys, keep);
  cuts.fresh_high = cuts.fresh_low;
  if (policy.has_low_tier()) {
    const auto high = static_cast<int64_t>(std::llround(double{policy.high_share} * input.budget));
    cuts.fresh_high = cut_above_worst(keys, std::clamp<int64_t>(high - kept_anyway, 0, keep));
  }
  cuts.old_high = cuts.fresh_high;
  cuts.old_floor = cuts.fresh_low;
  cuts.old_low = cuts.fresh_low;
  return cuts;
}

RowCuts cuts_by_mass(const RuleInput& input) {
  const KvPolicy& policy = input.sequence.policy;
  size_t fresh = 0;
  double fresh_mass = 0;
  input.row.for_each_own([&](const KvMark& mark, TokenAge age) {
    if (age == TokenAge::fresh) {
      input.keys[fresh++] = input.significance.key(mark);
      fresh_mass += input.significance.of(mark);
    }
  });
  const std::span<TokenKey> keys = input.keys.first(fresh);
  std::sort(keys.begin(), keys.end());
  const double mass = input.sequence.judged == 0 ? total_score(input) : fresh_mass;
  const double may_drop = (1.0 - double{policy.mass_keep}) * mass;
  const double may_lower = (1.0 - double{policy.mass_high}) * mass;
  RowCuts cuts;
  cuts.fresh_low = may_drop > 0 ? kAboveAllKeys : kLowestKey;
  cuts.fresh_high = may_lower > 0 ? kAboveAllKeys : kLowestKey;
  double below = 0;
  for (const TokenKey key : keys) {
    below += significance_of(key);
    if (cuts.fresh_low == kAboveAllKeys && below > may_drop) {
      cuts.fresh_low = key;
    }
    if (below > may_lower && may_lower > 0) {
      cuts.fresh_high = key;
      break;
    }
  }
  if (!policy.has_low_tier()) {
    cuts.fresh_high = cuts.fresh_low;
  }
  return cuts;
}

RowCuts cuts_of(const RuleInput& input) {
  switch (input.sequence.policy.rule) {
    case KvRule::thresholds:
      return cuts_by_thresholds(input);
    case KvRule::budget:
      return cuts_by_budget(input);
    case KvRule::mass:
      return cuts_by_mass(input);
    case KvRule::keep_all:
      break;
  }
  TESSERA_CHECK(false, "kv_compress: a policy that compresses nothing");
  return {};
}

}  // namespace tessera
