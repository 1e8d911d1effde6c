#pragma once

#include <span>

#include "kernels/kv/token_row.h"

namespace tessera {

// A rule computes the cutoffs of a row from its token scores; one function each.
// keys: scratch, at least as many keys as the row has tokens.
struct RuleInput {
  const TokenRow& row;
  const KvCompression& sequence;
  const Significance& significance;
  int32_t budget = 0;  // rule `budget`: tokens that the row may keep, protected ones included
  std::span<TokenKey> keys;
};

// LeanKV, section 4. A fresh token stays high, goes low or is dropped by comparison with alpha / N.
// N is the number of tokens; at the prompt's end that is the prompt's length. The paper's text
// compares cumulative significance at the prompt, and single tokens in Algorithm 1, with the same
// thresholds. Taken literally, that would drop nearly everything. alpha / N is what the paper's
// code does.
//
// Algorithm 1 follows. For each token that went high (low), the least significant old token of that
// tier is demoted or dropped, if it is below the thresholds. No victim is a candidate, so the order
// of the candidates makes no difference, and all victims are found at once.
RowCutoffs cutoffs_by_thresholds(const RuleInput& input);

// Keeps the best `budget` tokens, and the share high_share of them in the high tier. Tokens that no
// rule touches count first. A token never returns from the low tier.
RowCutoffs cutoffs_by_budget(const RuleInput& input);

// Drops the least significant fresh tokens, as long as together they had at most 1 - mass_keep of
// the attention. The tokens above them, up to 1 - mass_high, go low. Both are shares of all
// attention at the prompt's end (LeanKV, section 4: T_l and T_h as cumulative significance).
// Afterwards they are shares of the fresh tokens' attention. A token is evaluated once, so losses
// do not add up over time.
RowCutoffs cutoffs_by_mass(const RuleInput& input);

RowCutoffs cutoffs_of(const RuleInput& input);

}  // namespace tessera
