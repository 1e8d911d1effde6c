#pragma once

#include <cstdint>

namespace tessera {

// Codes of 3 bits: places in a codebook of 8 numbers, times a scale of the token and head. The
// numbers have the least squared error for a normal distribution (Max, "Quantizing for Minimum
// Distortion", 1960, table 1). They are integers: 127 is 2.152 standard deviations. Rotated
// channels (rotation.h) are close to that distribution.
//
// Numbers are stored as multipliers: with kCodebookZero added, which makes them unsigned bytes for
// products of integers. A token's zero is then -kCodebookZero * scale and takes no memory.
inline constexpr int32_t kCodebookBits = 3;
inline constexpr int32_t kCodebookSize = 1 << kCodebookBits;
inline constexpr int32_t kCodebookZero = 128;
inline constexpr int32_t kCodebookNumbers[kCodebookSize] = {-127, -79, -45, -14, 14, 45, 79, 127};

// Returns: upper bound of the numbers (without kCodebookZero) that code i - 1 stands for.
// Requires: 1 <= i < kCodebookSize.
constexpr float codebook_limit(int32_t i) {
  return static_cast<float>(kCodebookNumbers[i - 1] + kCodebookNumbers[i]) / 2;
}

constexpr bool has_codebook(int32_t bits) {
  return bits == kCodebookBits;
}

// Returns: the integer by which a code is multiplied.
constexpr int32_t multiplier_of(uint32_t code, int32_t bits) {
  return has_codebook(bits) ? kCodebookNumbers[code] + kCodebookZero : static_cast<int32_t>(code);
}

// Multipliers of codes for look-up instructions, repeated to kBytes bytes.
template <int kBytes>
struct CodebookTable {
  constexpr CodebookTable() {
    for (int i = 0; i < kBytes; ++i) {
      of[i] = static_cast<uint8_t>(
          multiplier_of(static_cast<uint32_t>(i % kCodebookSize), kCodebookBits));
    }
  }
  alignas(kBytes) uint8_t of[kBytes] = {};
};

}  // namespace tessera
