#pragma once

#include <cstdint>

namespace tessera {

// Base of scorers: a sum of attention over the scored queries, mean over the heads. A scorer hides
// the members in which it differs; kernels/kv/kv_scorers.h explains them.
struct ScorerTraits {
  static constexpr bool kMeanOverQueries = false;
  static constexpr bool kMaximum = false;
  static constexpr bool kReplays = false;
  static constexpr bool kWeighsOutput = false;
  template <class V>
  static constexpr V add_head(V sum, V weight, V factor) {
    return V::fma(weight, factor, sum);
  }
  static constexpr float share(int32_t heads) { return 1.0f / static_cast<float>(heads); }
};

}  // namespace tessera
