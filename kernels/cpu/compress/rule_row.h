#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cpu/compress/key_cuts.h"
#include "kernels/cpu/compress/rules.h"

namespace tessera {

// One row, for a rule (kernels/kv/kv_rules.h).
class RuleRow {
 public:
  explicit RuleRow(const RuleInput& input) : input_(input) {}

  const KvCompression& sequence() const { return input_.sequence; }
  int32_t budget() const { return input_.budget; }
  int32_t stored() const {
    return input_.row.counts.high + input_.row.counts.low + input_.row.open;
  }
  double total_score() const {
    if (is_mean_over_queries(sequence().policy.scorer)) {
      return 1;
    }
    double total = 0;
    input_.row.for_each_stored(
        [&](const KvTokenScore& token_score) { total += token_score.score; });
    return total;
  }
  template <class Select>
  double mass(Select&& select) const {
    double mass = 0;
    each_key([&](TokenAge age, bool in_high, TokenKey key) {
      mass += select(age, in_high, key) ? significance_of(key) : 0.0f;
    });
    return mass;
  }
  template <int kCounts, class Add>
  RuleCounts<kCounts> tally(Add&& add) const {
    RuleCounts<kCounts> sums;
    each_key([&](TokenAge age, bool in_high, TokenKey key) { add(sums, age, in_high, key); });
    return sums;
  }
  template <class Select>
  TokenKey cut_best(int32_t best, Select&& select) const {
    return cut_above_worst(collect(select), best);
  }
  template <class Select>
  TokenKey cut_mass(double limit, Select&& select) const {
    return cut_below_mass(collect(select), limit);
  }

 private:
  template <class Visit>
  void each_key(Visit&& visit) const {
    input_.row.for_each_own_high([&](const KvTokenScore& token_score, TokenAge age) {
      visit(age, true, input_.significance.key(token_score));
    });
    input_.row.for_each_own_low([&](const KvTokenScore& token_score) {
      visit(TokenAge::old, false, input_.significance.key(token_score));
    });
  }
  template <class Select>
  std::span<TokenKey> collect(Select&& select) const {
    size_t count = 0;
    each_key([&](TokenAge age, bool in_high, TokenKey key) {
      if (select(age, in_high, key)) {
        input_.keys[count++] = key;
      }
    });
    return input_.keys.first(count);
  }

  const RuleInput& input_;
};

}  // namespace tessera
