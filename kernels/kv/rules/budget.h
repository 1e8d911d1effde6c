#pragma once

#include "kernels/kv/rules/row_function.h"
#include "kernels/kv/rules/token_key.h"

namespace tessera {

// Keeps the best tokens of a row's budget, and the share high_share of them in the high tier.
// Tokens that no rule touches count first. A token never returns from the low tier.
struct BudgetRule {
  static constexpr bool kNeedsScores = false;
  static constexpr bool kDividesBudget = true;

  struct Room {
    int32_t own;   // tokens that a rule may change
    int32_t keep;  // of these, tokens that the budget keeps
  };
  template <class Row>
  TESSERA_ROW_FUNCTION Room room_of(const Row& row) {
    const int32_t own =
        row.template tally<1>([](RuleCounts<1>& sums, TokenAge, bool, TokenKey) { ++sums.of[0]; })
            .of[0];
    return {own, clamped(row.budget() - (row.stored() - own), own)};
  }
  template <class Row>
  TESSERA_ROW_FUNCTION RowCutoffs cutoffs(const Row& row) {
    const auto any = [](TokenAge, bool, TokenKey) { return true; };
    const Room room = room_of(row);
    const int32_t kept_anyway = row.stored() - room.own;
    const int32_t keep = room.keep;
    RowCutoffs cutoffs;
    cutoffs.fresh_low = row.cut_best(keep, any);
    cutoffs.fresh_high = cutoffs.fresh_low;
    if (row.sequence().policy.has_low_tier()) {
      const double wanted =
          rounded_product(double{row.sequence().policy.budget().high_share}, row.budget());
      const auto whole = static_cast<int32_t>(wanted);
      const int32_t high = whole + (wanted - whole >= 0.5 ? 1 : 0);
      cutoffs.fresh_high = row.cut_best(clamped(high - kept_anyway, keep), any);
    }
    cutoffs.old_high = cutoffs.fresh_high;
    cutoffs.old_floor = cutoffs.fresh_low;
    cutoffs.old_low = cutoffs.fresh_low;
    return cutoffs;
  }

 private:
  static constexpr int32_t clamped(int32_t count, int32_t max) {
    return count < 0 ? 0 : count > max ? max : count;
  }
};

}  // namespace tessera
