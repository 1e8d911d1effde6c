#pragma once

#include "kernels/kv/rules/row_function.h"
#include "kernels/kv/rules/token_key.h"

namespace tessera {

// Drops the least significant fresh tokens, as long as together they had at most 1 - mass_keep of
// the attention. The tokens above them, up to 1 - mass_high, go low. Both are shares of all
// attention at the prompt's end.
// Afterwards they are shares of the fresh tokens' attention. A token is evaluated once, so losses
// do not add up over time.
struct MassRule {
  static constexpr bool kNeedsScores = true;
  static constexpr bool kDividesBudget = false;
  template <class Row>
  TESSERA_ROW_FUNCTION RowCutoffs cutoffs(const Row& row) {
    const auto& policy = row.sequence().policy;
    const auto is_fresh = [](TokenAge age, bool, TokenKey) { return age == TokenAge::fresh; };
    const double mass = row.sequence().evaluated == 0 ? row.total_score() : row.mass(is_fresh);
    const double may_drop = rounded_product(1.0 - double{policy.mass().mass_keep}, mass);
    const double may_lower = rounded_product(1.0 - double{policy.mass().mass_high}, mass);
    RowCutoffs cutoffs;
    cutoffs.fresh_low = may_drop > 0 ? row.cut_mass(may_drop, is_fresh) : kLowestKey;
    cutoffs.fresh_high = !policy.has_low_tier() ? cutoffs.fresh_low
                         : may_lower > 0        ? row.cut_mass(may_lower, is_fresh)
                                                : kLowestKey;
    return cutoffs;
  }
};

}  // namespace tessera
