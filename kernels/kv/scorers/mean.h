#pragma once

#include "kernels/kv/scorers/traits.h"

namespace tessera {

// Mean of a over the later scored queries, mean over the heads (LeanKV, section 4).
struct MeanScorer : ScorerTraits {
  static constexpr bool kMeanOverQueries = true;
};

}  // namespace tessera
