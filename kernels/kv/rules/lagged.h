#pragma once

#include "kernels/kv/kv_page.h"
#include "kernels/kv/row_function.h"
#include "kernels/kv/rules/budget.h"

namespace tessera {

// LazyEviction (Zhang et al. 2025): an observation window passes between evictions, so that a token
// whose attention recurs can be seen again before it is evaluated. It is the rule `budget`, in
// every `lag`-th closed group of the sequence only; the window is lag x 64 tokens. In between a row
// may exceed its budget by the window.
struct LaggedRule {
  static constexpr bool kNeedsScores = true;
  static constexpr bool kDividesBudget = true;
  template <class Row>
  TESSERA_ROW_FUNCTION RowCutoffs cutoffs(const Row& row) {
    const int32_t groups = row.sequence().tokens / kKvGroup;
    return groups % row.sequence().policy.lag == 0 ? BudgetRule::cutoffs(row) : RowCutoffs{};
  }
};

}  // namespace tessera
