#pragma once

#include <cstdint>

#include "kernels/kv/scorers/traits.h"

namespace tessera {

// Keyformer (Adnan et al., MLSys 2024, section 3): sum of a softmax of its own over the logits x,
// with Gumbel noise z and a temperature: exp((x + z) / t) over the sum of these; mean over the
// heads. The noise lets tokens win that dropped tokens would have hidden. The temperature rises
// with each generated token, from 1 by 0.01 to at most 2, as in the paper's code.
//
// The noise is a function of layer, query and token, so that a prefix hit has the bits of a miss.
// It is the same for all heads, so that the ranks of a model agree; the paper draws it for each.
struct KeyformerScorer : ScorerTraits {
  static constexpr bool kOwnSoftmax = true;

  static constexpr float temperature(int32_t generated) {
    const float risen = 1.0f + 0.01f * static_cast<float>(generated);
    return risen < 2.0f ? risen : 2.0f;
  }

  // Returns: e^(z - the lowest z).
  template <class Log>
  static constexpr float noise(int32_t layer, int32_t query, int32_t token, Log&& log) {
    const float uniform = (static_cast<float>(bits(layer, query, token)) + 0.5f) / kValues;
    return log(0.5f / kValues) / log(uniform);
  }

 private:
  static constexpr float kValues = 1 << 23;

  // Returns: a hash in [0, kValues), by the finaliser of MurmurHash3.
  static constexpr uint32_t bits(int32_t layer, int32_t query, int32_t token) {
    uint64_t x = static_cast<uint64_t>(layer) << 48 ^ static_cast<uint64_t>(query) << 24 ^
                 static_cast<uint64_t>(token);
    x = (x ^ x >> 33) * 0xff51afd7ed558ccd;
    x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53;
    return static_cast<uint32_t>((x ^ x >> 33) >> 41);
  }
};

}  // namespace tessera
