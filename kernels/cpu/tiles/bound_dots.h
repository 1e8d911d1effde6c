#pragma once

#include <cstdint>

namespace tessera {

// Products of queries with the codes of a page's key bounds (kernels/kv/key_bounds.h). Integers, so
// that every instruction set has the same results. `Isa` only tells instantiations apart: each is
// compiled with the flags of its instruction set, and vectorised by the compiler.
template <class Isa>
struct BoundDots {
  static constexpr int32_t kMaxCodes = 512;

  // codes: [count]; factors: [heads, count]; dots: [heads].
  // Requires: count <= kMaxCodes; the magnitudes of a head's factors, times 255, add up to less
  // than 2^31.
  static void multiply(const uint8_t* codes, const int16_t* factors, int32_t count, int32_t heads,
                       int32_t* dots) {
    int16_t widened[kMaxCodes];
    for (int32_t i = 0; i < count; ++i) {
      widened[i] = codes[i];
    }
    for (int32_t head = 0; head < heads; ++head, factors += count) {
      int32_t dot = 0;
      for (int32_t i = 0; i < count; ++i) {
        dot += int32_t{widened[i]} * int32_t{factors[i]};
      }
      dots[head] = dot;
    }
  }
};

}  // namespace tessera
