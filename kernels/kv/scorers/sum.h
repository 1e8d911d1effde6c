#pragma once

#include "kernels/kv/scorers/traits.h"

namespace tessera {

// Sum of a over the scored queries, mean over the heads (H2O).
struct SumScorer : ScorerTraits {};

}  // namespace tessera
