#pragma once

#include <cstdint>
#include <span>

#include "kernels/matrix/view.h"

namespace tessera::lab {

// Uniform quantisation: 2^bits levels at equal distances from a group's least number to its
// largest, and each number becomes the nearest. Computed in f64, as the oracles do.

// Replaces the numbers of one group.
void round_to_levels(std::span<float> group, int bits);

// Replaces groups of `tokens` rows in each column. The last group may be shorter.
void round_channels(MatrixView<float> rows, int64_t tokens, int bits);

// Replaces groups of `channels` columns in each row. The last group may be shorter.
void round_tokens(MatrixView<float> rows, int64_t channels, int bits);

inline constexpr int64_t kGroupBytes = 4;  // a group's least number and its step, in f16
inline constexpr int64_t kHalfBytes = 2;   // a number in f16

// Returns: bytes of packed levels.
constexpr int64_t packed_bytes(int64_t numbers, int bits) {
  return div_ceil(numbers * bits, 8);
}

}  // namespace tessera::lab
