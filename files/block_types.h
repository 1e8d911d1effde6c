#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/matrix/weight.h"

namespace tessera {

// Destinations of the integers and scales of blocks that follow each other. Not owned.
struct BlockPlaces {
  uint8_t* codes = nullptr;           // [block values], from 0 on
  f16* scale = nullptr;               // [1]
  f16* minimum = nullptr;             // [1], if the format has a minimum
  int8_t* scale_factors = nullptr;    // [blocks of a superblock], if the format has superblocks
  int8_t* minimum_factors = nullptr;  // likewise, if it also has a minimum
};

// Unpacks one block of a GGUF file, without alignment. Codes and scales are those of the
// block type's weight format (encoding()).
using BlockUnpacker = void(const std::byte* block, const BlockPlaces& out);

// Blocks of 32 values with a scale in f16. Q4_1 and Q5_1 add a minimum in f16.
BlockUnpacker unpack_q8_0;
BlockUnpacker unpack_q4_0;
BlockUnpacker unpack_q4_1;
BlockUnpacker unpack_q5_0;
BlockUnpacker unpack_q5_1;

// Superblocks of 256 values. Blocks have integer scales: Q4_K and Q5_K for 32 values, with minimums
// of the same kind, Q6_K for 16. A file subtracts minimums; here they have the other sign.
BlockUnpacker unpack_q4_k;
BlockUnpacker unpack_q5_k;
BlockUnpacker unpack_q6_k;

// Computes the values of an unpacked block. They have the bits that PyPI's gguf computes: each
// product and each sum is rounded to f32.
// values: of a block of the file; out: [values]
void decode_block(WeightFormat format, const BlockPlaces& block, int64_t values, float* out);

}  // namespace tessera
