#pragma once

#include <cstdint>

namespace tessera {

// Sum of a over the scored queries, in which each later scored query multiplies what came before by
// the forgetting factor KvPolicy::score_decay; mean over the heads (A2SF, Jo and Shin 2024: A_n,k =
// sum over q of decay^(n - q) S_q,k). The paper sums each head by itself.
struct A2sfScorer {
  static constexpr bool kMeanOverQueries = false;
  static constexpr bool kDecays = true;
  static constexpr bool kHasState = false;
  static constexpr bool kOwnSoftmax = false;
  template <class V>
  static constexpr V add_head(V sum, V weight, V factor, V /*even*/) {
    return V::fma(weight, factor, sum);
  }
  static constexpr float share(int32_t heads) { return 1.0f / static_cast<float>(heads); }
};

}  // namespace tessera
