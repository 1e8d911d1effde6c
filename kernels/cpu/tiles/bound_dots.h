#pragma once

#include <cstdint>

namespace tessera {

// Products of queries with the codes of a page's key bounds (kernels/kv/key_bounds.h). Integers, so
// that every instruction set has the same results.
template <class Lanes>
struct BoundDots {
  // codes: [count]; factors: [heads, count]; dots: [heads].
  // Requires: the magnitudes of a head's factors, times 255, add up to less than 2^31; count is a
  // multiple of 16, except for scalar lanes.
  static void multiply(const uint8_t* codes, const int16_t* factors, int32_t count, int32_t heads,
                       int32_t* dots) {
    for (int32_t head = 0; head < heads; ++head, factors += count) {
      auto sums = Lanes::no_sums();
      for (int32_t i = 0; i < count; i += Lanes::kCodes) {
        sums = Lanes::add_products(sums, codes + i, factors + i, count - i);
      }
      dots[head] = Lanes::total(sums);
    }
  }
};

struct ScalarDots {
  static constexpr int32_t kCodes = 1;
  static int32_t no_sums() { return 0; }
  static int32_t add_products(int32_t sum, const uint8_t* code, const int16_t* factor, int32_t) {
    return sum + int32_t{*code} * int32_t{*factor};
  }
  static int32_t total(int32_t sum) { return sum; }
};

}  // namespace tessera
