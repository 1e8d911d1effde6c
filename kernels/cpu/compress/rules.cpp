#include "kernels/cpu/compress/rules.h"

#include "base/check.h"
#include "kernels/cpu/compress/rule_row.h"

namespace tessera {

RowCutoffs cutoffs_of(const RuleInput& input) {
  TESSERA_CHECK(input.sequence.policy.is_lossy(), "kv_compress: a policy that compresses nothing");
  return with_rule(input.sequence.policy.rule(),
                   [&](auto rule) { return decltype(rule)::cutoffs(RuleRow(input)); });
}

}  // namespace tessera
