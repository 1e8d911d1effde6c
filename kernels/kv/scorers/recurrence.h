#pragma once

#include <bit>
#include <cstdint>

#include "kernels/kv/scorers/traits.h"

namespace tessera {

// LazyEviction (Zhang et al. 2025). The maximum recurrence interval (MRI) of a token is the longest
// time so far in which it received no attention. If less time has passed since it last did, it is
// likely to be needed again soon. The significance is (MRI + 1) / (MRI + 1 + elapsed), which falls
// as elapsed / MRI grows.
//
// A token receives attention if at least one query head of its KV head gives it an even share: 1 /
// (tokens that the query attends to). The paper has a constant threshold. The paper also ranks by
// the MRI alone in a second term, which is left out here.
//
// The state has the bits of the token's score: the MRI, rounded down to 7 significant bits, and the
// token's age at its last attention. Ages are positions after the token's own, at most 2^20 - 1.
struct RecurrenceScorer : ScorerTraits {
  static constexpr bool kHasState = true;
  template <class V>
  static constexpr V add_head(V sum, V weight, V factor, V even) {
    return sum + V::at_least(weight * factor, even);
  }
  static constexpr float share(int32_t /*heads*/) { return 1; }

  static constexpr float update(float state, float heads, int32_t age) {
    if (!(heads > 0)) {
      return state;
    }
    const int32_t interval = age - last_age(state);
    const int32_t longest = longest_interval(state);
    return packed(interval > longest ? interval : longest, age);
  }
  static constexpr float significance(float state, int32_t age) {
    const auto expected = static_cast<float>(longest_interval(state) + 1);
    return expected / (expected + static_cast<float>(age - last_age(state)));
  }

 private:
  static constexpr int32_t kAgeBits = 20;
  static constexpr int32_t kMaxAge = (1 << kAgeBits) - 1;
  static constexpr int32_t kDigits = 7;  // of the interval, above its exponent

  static constexpr int32_t last_age(float state) {
    return static_cast<int32_t>(std::bit_cast<uint32_t>(state) & kMaxAge);
  }
  static constexpr int32_t longest_interval(float state) {
    const uint32_t code = std::bit_cast<uint32_t>(state) >> kAgeBits;
    return static_cast<int32_t>(code % (1u << kDigits) << (code >> kDigits));
  }
  static constexpr float packed(int32_t interval, int32_t age) {
    uint32_t digits = static_cast<uint32_t>(interval);
    uint32_t exponent = 0;
    for (; digits >= 1u << kDigits; digits >>= 1) {
      ++exponent;
    }
    const auto last = static_cast<uint32_t>(age < kMaxAge ? age : kMaxAge);
    return std::bit_cast<float>((exponent << kDigits | digits) << kAgeBits | last);
  }
};

}  // namespace tessera
