#pragma once

#include "kernels/kv/scorers/traits.h"

namespace tessera {

// Sum of a over the scored queries, mean over the heads.
struct SumScorer : ScorerTraits {};

}  // namespace tessera
