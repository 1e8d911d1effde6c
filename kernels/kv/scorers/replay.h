#pragma once

#include <cstdint>

#include "kernels/kv/scorers/traits.h"

namespace tessera {

// The most attention that a token gets from any query and any query head while the model repeats
// the tokens. The engine makes these queries: the replay of a section (KvPolicy::section). No
// question takes part, so the score serves every later one.
struct ReplayScorer : ScorerTraits {
  static constexpr bool kMaximum = true;
  static constexpr bool kReplays = true;
  template <class V>
  static constexpr V add_head(V sum, V weight, V factor) {
    return V::max(sum, weight * factor);
  }
  static constexpr float share(int32_t /*heads*/) { return 1; }
};

}  // namespace tessera
