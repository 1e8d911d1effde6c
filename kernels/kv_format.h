#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

// How a page encodes tokens: data, not a class. Keys and values may differ, because errors in keys
// pass through the exponential of the softmax and errors in values do not (LeanKV, section 3).
struct KvFormat {
  uint8_t key_bits = 16;
  uint8_t value_bits = 16;

  friend constexpr bool operator==(KvFormat, KvFormat) = default;
};

inline constexpr KvFormat kKvF32{32, 32};  // the oracle's format
inline constexpr KvFormat kKvF16{16, 16};  // the baseline every smaller format is measured against

}  // namespace tessera
