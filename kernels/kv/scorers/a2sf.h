#pragma once

#include "kernels/kv/scorers/traits.h"

namespace tessera {

// Sum of a over the scored queries, in which each later scored query multiplies the earlier sum by
// the forgetting factor KvPolicy::score_decay; mean over the heads (A2SF, Jo and Shin 2024: A_n,k =
// sum over q of decay^(n - q) S_q,k). The paper sums each head by itself.
struct A2sfScorer : ScorerTraits {
  static constexpr bool kDecays = true;
};

}  // namespace tessera
