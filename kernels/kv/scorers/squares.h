#pragma once

#include <cstdint>

#include "kernels/kv/scorers/traits.h"

namespace tessera {

// Sum of a^2 over queries and heads.
struct SquaresScorer : ScorerTraits {
  template <class V>
  static constexpr V add_head(V sum, V weight, V factor) {
    const V received = weight * factor;
    return V::fma(received, received, sum);
  }
  static constexpr float share(int32_t /*heads*/) { return 1.0f; }
};

}  // namespace tessera
