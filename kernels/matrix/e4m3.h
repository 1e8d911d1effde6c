#pragma once

#include <bit>
#include <cstdint>

namespace tessera {

// An 8-bit float as storage: 4 bits of exponent, 3 of mantissa, no infinities, largest value 448
// (Micikevicius et al., "FP8 Formats for Deep Learning", 2022, section 3). Every value is exact in
// bf16.
struct e4m3 {
  uint8_t bits = 0;
};

inline constexpr float kLargestE4m3 = 448;

constexpr float to_f32(e4m3 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x80u) << 24;
  const uint32_t magnitude = value.bits & 0x7fu;
  if (magnitude == 0x7fu) {
    return std::bit_cast<float>(sign | 0x7fc00000u);
  }
  if (magnitude < 8) {  // zero and subnormals
    return std::bit_cast<float>(std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-9f) |
                                sign);
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + (120u << 23)));
}

// Rounds to nearest even. Values above 448 become 448, as in the hardware's conversion.
constexpr e4m3 to_e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return {static_cast<uint8_t>(sign | 0x7fu)};
  }
  if (magnitude >= std::bit_cast<uint32_t>(kLargestE4m3)) {
    return {static_cast<uint8_t>(sign | 0x7eu)};
  }
  if (magnitude < 0x3c800000u) {  // below 2^-6: the last bit of a float of 2^14 is worth 2^-9
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return {static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x46800000u))};
  }
  const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  return {static_cast<uint8_t>(sign | ((rounded - (120u << 23)) >> 20))};
}

}  // namespace tessera
