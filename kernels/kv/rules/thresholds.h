#pragma once

#include "kernels/kv/rules/row_function.h"
#include "kernels/kv/rules/token_key.h"

namespace tessera {

// A fresh token stays high, goes low or is dropped by comparison with alpha / N. N is the number of
// tokens; at the prompt's end that is the prompt's length.
//
// For each token that went high (low), the least significant old token of that
// tier is demoted or dropped, if it is below the thresholds. No victim is a candidate, so the order
// of the candidates makes no difference, and all victims are found at once.
struct ThresholdsRule {
  static constexpr bool kNeedsScores = true;
  static constexpr bool kDividesBudget = false;
  template <class Row>
  TESSERA_ROW_FUNCTION RowCutoffs cutoffs(const Row& row) {
    const auto& policy = row.sequence().policy;
    const auto& thresholds = policy.thresholds();
    const double mean = row.total_score() / row.sequence().tokens;
    const TokenKey low = key_of(static_cast<float>(thresholds.alpha_low * mean), 0);
    const TokenKey high =
        policy.has_low_tier() ? key_of(static_cast<float>(thresholds.alpha_high * mean), 0) : low;
    const auto is_victim = [&](TokenAge age, bool in_high, TokenKey key) {
      return age == TokenAge::old && key < (in_high ? high : low);
    };
    enum { kWentHigh, kWentLow, kHighVictims, kLowVictims, kCounts };
    const auto counts = row.template tally<kCounts>(
        [&](RuleCounts<kCounts>& sums, TokenAge age, bool in_high, TokenKey key) {
          const bool fresh = age == TokenAge::fresh;
          const bool victim = is_victim(age, in_high, key);
          sums.of[kWentHigh] += fresh && key >= high ? 1 : 0;
          sums.of[kWentLow] += fresh && key >= low && key < high ? 1 : 0;
          sums.of[kHighVictims] += victim && in_high ? 1 : 0;
          sums.of[kLowVictims] += victim && !in_high ? 1 : 0;
        });
    // With a candidate for every victim, all old tokens below the threshold leave.
    const auto cut = [&](bool of_high, TokenKey threshold, int32_t came, int32_t victims) {
      return came >= victims
                 ? threshold
                 : row.cut_best(victims - came, [&](TokenAge age, bool in_high, TokenKey key) {
                     return in_high == of_high && is_victim(age, in_high, key);
                   });
    };
    RowCutoffs cutoffs{.fresh_high = high, .fresh_low = low};
    cutoffs.old_high = cut(true, high, counts.of[kWentHigh], counts.of[kHighVictims]);
    cutoffs.old_floor = low;
    cutoffs.old_low = cut(false, low, counts.of[kWentLow], counts.of[kLowVictims]);
    return cutoffs;
  }
};

}  // namespace tessera
