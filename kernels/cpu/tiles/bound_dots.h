#pragma once

#include <cstdint>

namespace tessera {

// Product of a query with the codes of a page's key bounds (kernels/kv/key_bounds.h). Integers, so
// that every instruction set has the same result.
template <class Lanes>
struct BoundDots {
  // codes, factors: [count]. Requires: the magnitudes of the factors, times 255, add up to less
  // than 2^31 for each sign; count is a multiple of 16, except for scalar lanes.
  static int32_t multiply(const uint8_t* codes, const int16_t* factors, int32_t count) {
    auto sums = Lanes::no_sums();
    for (int32_t i = 0; i < count; i += Lanes::kCodes) {
      sums = Lanes::add_products(sums, codes + i, factors + i, count - i);
    }
    return Lanes::total(sums);
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
