#pragma once

#include "kernels/kv/scorers/traits.h"

namespace tessera {

// KVzip (Kim et al. 2025, section 3): the most attention that a token gets from any query and any
// query head while the model repeats the tokens. The engine makes these queries: the replay of a
// section (KvPolicy::section). No question takes part, so the score serves every later one.
struct ReplayScorer : ScorerTraits {
  static constexpr bool kHasState = true;
  static constexpr bool kMaxOverHeads = true;
  static constexpr bool kReplays = true;
  template <class V>
  static constexpr V add_head(V sum, V weight, V factor, V /*even*/) {
    return V::max(sum, weight * factor);
  }
  static constexpr float share(int32_t /*heads*/) { return 1; }

  static constexpr float update(float state, float heads, int32_t /*age*/) {
    return heads > state ? heads : state;
  }
  static constexpr float significance(float state, int32_t /*age*/) { return state; }
};

}  // namespace tessera
