#pragma once

#include <bit>
#include <cstdint>

namespace tessera {

// Sort key of a token: higher is better. Among equal scores the later position is higher.
using TokenKey = uint64_t;
inline constexpr TokenKey kLowestKey = 0;
inline constexpr TokenKey kAboveAllKeys = ~TokenKey{0};

// Requires: significance >= 0, so that the bits of an f32 have the order of the values.
constexpr TokenKey key_of(float significance, int32_t position) {
  return TokenKey{std::bit_cast<uint32_t>(significance + 0.0f)} << 32 |
         static_cast<uint32_t>(position);
}
constexpr float significance_of(TokenKey key) {
  return std::bit_cast<float>(static_cast<uint32_t>(key >> 32));
}

enum class TokenAge : uint8_t {
  kept,   // a sink, recent, or in a page with several owners: no rule touches it
  fresh,  // not evaluated yet
  old,    // evaluated before
};

// Cutoffs of one row. A token's key decides: it stays, goes to the low tier or is dropped. Keys at
// or above a cutoff pass it.
struct RowCutoffs {
  TokenKey fresh_high = kLowestKey;  // below: leaves the high tier
  TokenKey fresh_low = kLowestKey;   // below: dropped
  TokenKey old_high = kLowestKey;
  TokenKey old_floor = kLowestKey;  // old tokens that leave the high tier: below, dropped
  TokenKey old_low = kLowestKey;    // tokens of the low tier: below, dropped
};

// Counts that a rule makes in one pass over a row.
template <int kCounts>
struct RuleCounts {
  int32_t of[kCounts] = {};
};

}  // namespace tessera
