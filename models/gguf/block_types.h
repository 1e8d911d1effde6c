#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera {

// Decodes `count` blocks to f32, block_values() each. Values have the bits that PyPI's gguf
// computes: each product and each sum is rounded to f32.
// blocks: without alignment; out: [count * block_values]
using BlockDecoder = void(const std::byte* blocks, int64_t count, float* out);

// Blocks of 32 values with a scale in f16. Q4_1 and Q5_1 add a minimum in f16.
BlockDecoder decode_q8_0;
BlockDecoder decode_q4_0;
BlockDecoder decode_q4_1;
BlockDecoder decode_q5_0;
BlockDecoder decode_q5_1;

// Blocks of 256 values. Sub-blocks have integer scales, and the block has a scale for these in f16:
// Q4_K and Q5_K for 32 values, with minima of the same kind, Q6_K for 16.
BlockDecoder decode_q4_k;
BlockDecoder decode_q5_k;
BlockDecoder decode_q6_k;

}  // namespace tessera
