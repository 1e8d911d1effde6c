#pragma once

#include "kernels/kv/scorers/traits.h"

namespace tessera {

// Number of scored queries to which the token was pivotal: it received at least the even share of
// their attention, 1 / (stored tokens). Mean over the heads (Scissorhands, Liu et al. 2023,
// Algorithm 2). The paper counts the other queries, and drops the tokens with most of them. That is
// the same order among tokens that all scored queries saw. A token that entered late has fewer
// queries here, so it ranks lower. The paper protects it by its recent window, as `recent` does.
struct ScissorhandsScorer : ScorerTraits {
  template <class V>
  static constexpr V add_head(V sum, V weight, V factor, V even) {
    return sum + V::at_least(weight * factor, even);
  }
};

}  // namespace tessera
