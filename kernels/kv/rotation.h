#pragma once

#include <cstdint>

namespace tessera {

// The rotation of rotated formats: a Walsh-Hadamard transform of the channels of one token's key
// (or value) of one KV head, orthonormal and its own inverse. Rotated keys and rotated queries have
// the products of the originals, so queries are rotated instead of the keys that are read. Sums of
// rotated values are rotated back.
//
// head_dim is divided into blocks of the largest power of 2 that divides it: one block of 64 or 128
// channels, 5 blocks of 16 at head_dim 80, 3 blocks of 32 at head_dim 96.
constexpr int32_t rotation_block(int32_t head_dim) {
  return head_dim & -head_dim;
}

// Blocks smaller than this spread a large channel over too few others. The engine refuses them.
inline constexpr int32_t kMinRotationBlock = 16;

// Rotates in place. The order of operations is fixed, so every caller gets the same bits.
// Requires: channels: [head_dim], in blocks of at most 256.
void rotate(float* channels, int32_t head_dim);

}  // namespace tessera
