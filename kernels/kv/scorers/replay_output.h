#pragma once

#include "kernels/kv/scorers/squares.h"

namespace tessera {

// The change of a layer's output that the loss of a token causes, while the model repeats the
// tokens. A lost token with attention a and value v changes the attention's output by about a * v.
// The score is the sum of squares of a * |v| / rms(x) over queries and query heads. x is the
// residual stream that enters the layer, which grows from layer to layer. So layers compete for one
// budget by their relative changes.
//
// A projection of v to the layer's output changes little
// (docs/measurements/2026-11-24-output-scores.md).
struct ReplayOutputScorer : SquaresScorer {
  static constexpr bool kReplays = true;
  static constexpr bool kWeighsOutput = true;
};

}  // namespace tessera
