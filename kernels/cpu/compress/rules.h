#pragma once

#include <span>

#include "kernels/cpu/compress/token_row.h"

namespace tessera {

// Rules: from a row's marks to its cuts, one function each. `keys` is scratch for as many keys as
// the row has tokens.
struct RuleInput {
  const TokenRow& row;
  const KvCompression& sequence;
  const Significance& significance;
  int32_t budget = 0;  // rule `budget`: tokens that the row may keep, all of them counted
  std::span<TokenKey> keys;
};

// LeanKV, section 4. A fresh token goes high, low or away by alpha / N, N the tokens there are: at
// the prompt's end that is its length. The paper's text compares cumulative significance at the
// prompt and single tokens in Algorithm 1 with the same thresholds, which taken literally would
// drop nearly everything; alpha / N is what its code does. Then Algorithm 1: for each token that
// went high (low), the least significant old one of that tier is demoted or dropped, if it is below
// the thresholds. The order of the candidates makes no difference, so all victims are found at
// once: none of them is a candidate.
RowCutoffs cutoffs_by_thresholds(const RuleInput& input);

// The best `budget` tokens are kept, and of them the share high_share stays high; what no rule
// touches counts first. A token never comes back from the low tier.
RowCutoffs cutoffs_by_budget(const RuleInput& input);

// Among the fresh tokens the least significant go, as long as they had together no more than
// 1 - mass_keep of the attention, and those above them go low up to 1 - mass_high: of all attention
// at the prompt's end (LeanKV, section 4: T_l and T_h as cumulative significance), afterwards of
// the fresh tokens' own. A token is judged once, so the losses do not add up with time.
RowCutoffs cutoffs_by_mass(const RuleInput& input);

RowCutoffs cutoffs_of(const RuleInput& input);

}  // namespace tessera
