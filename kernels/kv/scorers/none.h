#pragma once

#include "kernels/kv/scorers/traits.h"

namespace tessera {

// No scores: tokens rank by position, and later ones are kept. No query is scored.
struct NoScorer : ScorerTraits {};

}  // namespace tessera
