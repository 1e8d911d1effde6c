#pragma once

#include <cstdint>

namespace tessera {

// How a page encodes tokens: data, not a class. Keys and values may differ, because errors in keys
// pass through the exponential of the softmax and errors in values do not (LeanKV, section 3.1).
//
// 32 and 16 bits are floats and go together. Fewer bits are codes: each token's key (and each
// token's value) of one KV head is stored as code * scale + zero, with scale and zero in f16 per
// token and head; code = round((x - zero) / scale) (LeanKV, section 2, equation 2).
struct KvFormat {
  uint8_t key_bits = 16;    // 32, 16; 8, 4, 2
  uint8_t value_bits = 16;  // 32, 16; 8, 4, 2, 1

  constexpr bool is_codes() const { return key_bits <= 8; }

  friend constexpr bool operator==(KvFormat, KvFormat) = default;
};

inline constexpr KvFormat kKvF32{32, 32};  // the oracle's format
inline constexpr KvFormat kKvF16{16, 16};  // the baseline every smaller format is measured against
inline constexpr KvFormat kKvK8V8{8, 8};
inline constexpr KvFormat kKvK8V4{8, 4};
inline constexpr KvFormat kKvK4V4{4, 4};
inline constexpr KvFormat kKvK4V2{4, 2};
inline constexpr KvFormat kKvK4V1{4, 1};
// Mirrors of the above: only for LeanKV's comparison (section 7.2), which shows what keys are
// worth.
inline constexpr KvFormat kKvK4V8{4, 8};
inline constexpr KvFormat kKvK2V4{2, 4};

// Whether there are kernels for it.
constexpr bool is_supported(KvFormat format) {
  const int key = format.key_bits;
  const int value = format.value_bits;
  if (key >= 16 || value >= 16) {
    return key == value && (key == 16 || key == 32);
  }
  return (key == 8 || key == 4 || key == 2) &&
         (value == 8 || value == 4 || value == 2 || value == 1);
}

}  // namespace tessera
