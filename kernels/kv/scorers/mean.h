#pragma once

#include "kernels/kv/scorers/traits.h"

namespace tessera {

// Mean of a over the later scored queries, mean over the heads.
struct MeanScorer : ScorerTraits {
  static constexpr bool kMeanOverQueries = true;
};

}  // namespace tessera
