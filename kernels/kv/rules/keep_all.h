#pragma once

#include "kernels/kv/rules/row_function.h"
#include "kernels/kv/rules/token_key.h"

namespace tessera {

// Nothing is compressed after it is stored.
struct KeepAllRule {
  static constexpr bool kNeedsScores = false;
  static constexpr bool kDividesBudget = false;
  template <class Row>
  TESSERA_ROW_FUNCTION RowCutoffs cutoffs(const Row& /*row*/) {
    return {};
  }
};

}  // namespace tessera
