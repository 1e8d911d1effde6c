#pragma once

#include <bit>
#include <cstdint>

namespace tessera {

// The two 16-bit float formats as storage. Arithmetic is in f32. Conversion rounds to nearest even,
// like the hardware conversions, so scalar and SIMD code agree bit for bit. A declaration without a
// value leaves them uninitialised, like plain numbers: arrays of them are scratch space.

struct bf16 {
  uint16_t bits;
};

struct f16 {
  uint16_t bits;
};

inline constexpr float kLargestF16 = 65504.0f;

constexpr float to_f32(bf16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

constexpr bf16 to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {  // NaN: keep it quiet, never round it to infinity
    return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  }
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

constexpr float to_f32(f16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1fu;
  const uint32_t mantissa = value.bits & 0x3ffu;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24 is exact in f32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  if (exponent == 0x1f) {
    return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

constexpr f16 to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return {static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu))};
  }
  if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    return {static_cast<uint16_t>(sign | 0x7c00u)};
  }
  if (magnitude <
      0x38800000u) {  // below 2^-14: adding 0.5 leaves the rounded subnormal in the low bits
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u))};
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

}  // namespace tessera
