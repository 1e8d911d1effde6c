#pragma once

#include <span>

#include "kernels/kv/token_row.h"

namespace tessera {

struct RuleInput {
  const TokenRow& row;
  const KvCompression& sequence;
  const Significance& significance;
  int32_t budget = 0;        // tokens that the row may keep, for rules that divide a budget
  std::span<TokenKey> keys;  // scratch, at least as many keys as the row has tokens
};

// Returns: the cutoffs of the policy's rule (kernels/kv/kv_rules.h).
RowCutoffs cutoffs_of(const RuleInput& input);

}  // namespace tessera
