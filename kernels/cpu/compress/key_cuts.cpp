#include "kernels/cpu/compress/key_cuts.h"

#include <algorithm>

namespace tessera {

TokenKey cut_above_worst(std::span<TokenKey> keys, int64_t count) {
  if (count <= 0) {
    return kAboveAllKeys;
  }
  if (count >= std::ssize(keys)) {
    return kLowestKey;
  }
  const auto last = keys.end() - count;
  std::nth_element(keys.begin(), last, keys.end());
  return *last;
}

TokenKey cut_below_mass(std::span<TokenKey> keys, double limit) {
  std::sort(keys.begin(), keys.end());
  double below = 0;
  for (const TokenKey key : keys) {
    below += significance_of(key);
    if (below > limit) {
      return key;
    }
  }
  return kAboveAllKeys;
}

}  // namespace tessera
