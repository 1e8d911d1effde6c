#pragma once

#include <cstdint>

#include "kernels/kv/rules/budget.h"
#include "kernels/kv/rules/keep_all.h"
#include "kernels/kv/rules/mass.h"
#include "kernels/kv/rules/thresholds.h"

namespace tessera {

// A rule decides which tokens stay in the high tier, go to the low tier, or are dropped. It
// computes five cutoffs of a row (RowCutoffs in token_key.h) from the row's token scores.
//
// A rule is one file of rules/ and one line of the table below, for every backend. Its type has:
//   kNeedsScores   true: it does not work with the scorer `none`
//   kDividesBudget true: it fills the budgets that the policy's allocator gives to rows
//   cutoffs(row)   Returns: the row's cutoffs. A TESSERA_ROW_FUNCTION.
// Row gives access to one row:
//   sequence()          KvCompression, with the policy
//   budget()            tokens that the row may keep, the protected ones included
//   stored()            tokens of the row
//   total_score()       sum of the scores of the stored tokens; 1 if they are shares already
//   mass(select)        sum of the significances of the selected tokens
//   tally<N>(add)       Returns: RuleCounts<N>. Calls add(counts, age, in_high, key) for each token
//                       that a rule may change.
//   cut_best(best, select)   the cutoff that exactly the best `best` selected tokens reach
//   cut_mass(limit, select)  the cutoff below which the selected tokens have at most `limit` of the
//                            significance together
// select(age, in_high, key) is called for tokens that a rule may change.
// The name is the value of the policy field `rule`. Values go between ranks: add new ones last.
#define TESSERA_KV_RULES(RULE)     \
  RULE(keep_all, KeepAllRule)      \
  RULE(thresholds, ThresholdsRule) \
  RULE(budget, BudgetRule)         \
  RULE(mass, MassRule)

enum class KvRule : uint8_t {
#define TESSERA_RULE(name, Type) name,
  TESSERA_KV_RULES(TESSERA_RULE)
#undef TESSERA_RULE
};

// Returns: call(Type()) for the rule's type.
template <class Call>
constexpr auto with_rule(KvRule rule, Call&& call) {
  switch (rule) {
#define TESSERA_RULE(name, Type) \
  case KvRule::name:             \
    return call(Type());
    TESSERA_KV_RULES(TESSERA_RULE)
#undef TESSERA_RULE
  }
  return call(KeepAllRule());
}

constexpr bool divides_budget(KvRule rule) {
  return with_rule(rule, [](auto type) { return decltype(type)::kDividesBudget; });
}

}  // namespace tessera
