#include "files/block_types.h"

#include <cstring>

namespace tessera {
namespace {

constexpr int kSmall = 32;     // values of a block with one scale
constexpr int kSuper = 256;    // values of a superblock
constexpr int kSubBlocks = 8;  // of Q4_K and Q5_K

void copy_half(const std::byte* bytes, f16* half) {
  std::memcpy(half, bytes, sizeof(*half));
}

uint32_t u32_at(const std::byte* bytes) {
  uint32_t value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

int byte_at(const std::byte* bytes, int i) {
  return static_cast<int>(bytes[i]);
}

// Eight neighbouring bytes, for the loops that see every weight of a model.
uint64_t u64_at(const std::byte* bytes) {
  uint64_t value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

// Returns: `bits` shifted down by `shift` in each byte, and all but its mask cleared.
constexpr uint64_t shifted(uint64_t bits, int shift, uint8_t mask) {
  return bits >> shift & mask * 0x0101010101010101;
}

// Returns: the low eight bits of `bits`, one in each byte.
constexpr uint64_t spread(uint32_t bits) {
  const uint64_t apart = (bits & 0xff) * 0x0101010101010101 & 0x8040201008040201;
  return shifted(apart + 0x7f7f7f7f7f7f7f7f, 7, 1);
}

// Codes of 32 values: the low halves of 16 bytes, then their high halves; bit i of `high` is the
// fifth bit of value i.
void unpack_nibbles(const std::byte* nibbles, uint32_t high, uint8_t* codes) {
  for (int i = 0; i < kSmall / 2; i += 8) {
    const uint64_t both = u64_at(nibbles + i);
    const uint64_t first = shifted(both, 0, 0xf) | spread(high >> i) << 4;
    const uint64_t second = shifted(both, 4, 0xf) | spread(high >> (i + 16)) << 4;
    std::memcpy(codes + i, &first, sizeof(first));
    std::memcpy(codes + i + 16, &second, sizeof(second));
  }
}

// Scale and minimum of sub-block i of Q4_K and Q5_K: 6 bits each, in 12 bytes.
struct SubScale {
  int scale;
  int minimum;
};

SubScale sub_scale(const std::byte* packed, int i) {
  if (i < 4) {
    return {byte_at(packed, i) & 63, byte_at(packed, i + 4) & 63};
  }
  const int low = byte_at(packed, i + 4);
  return {(low & 0xf) | (byte_at(packed, i - 4) >> 6) << 4, (low >> 4) | (byte_at(packed, i) >> 6)
                                                                             << 4};
}

// Q4_K, and Q5_K with a fifth bit of each value in `high`, bit i for sub-block i. Null: no bits.
void unpack_k(const std::byte* block, const std::byte* nibbles, const std::byte* high,
              const BlockPlaces& out) {
  copy_half(block, out.scale);
  copy_half(block + 2, out.minimum);
  out.minimum->bits ^= 0x8000;
  for (int i = 0; i < kSubBlocks; ++i) {
    const SubScale sub = sub_scale(block + 4, i);
    out.scale_factors[i] = static_cast<int8_t>(sub.scale);
    out.minimum_factors[i] = static_cast<int8_t>(sub.minimum);
    for (int j = 0; j < 32; j += 8) {
      const uint64_t fifth = high == nullptr ? 0 : shifted(u64_at(high + j), i, 1) << 4;
      const uint64_t codes = shifted(u64_at(nibbles + i / 2 * 32 + j), i % 2 * 4, 0xf) | fifth;
      std::memcpy(out.codes + i * 32 + j, &codes, sizeof(codes));
    }
  }
}

}  // namespace

void unpack_q8_0(const std::byte* block, const BlockPlaces& out) {
  copy_half(block, out.scale);
  for (int i = 0; i < kSmall; i += 8) {
    const uint64_t codes = u64_at(block + 2 + i) ^ 0x8080808080808080;  // adds the offset of 128
    std::memcpy(out.codes + i, &codes, sizeof(codes));
  }
}

void unpack_q4_0(const std::byte* block, const BlockPlaces& out) {
  copy_half(block, out.scale);
  unpack_nibbles(block + 2, 0, out.codes);
}

void unpack_q4_1(const std::byte* block, const BlockPlaces& out) {
  copy_half(block, out.scale);
  copy_half(block + 2, out.minimum);
  unpack_nibbles(block + 4, 0, out.codes);
}

void unpack_q5_0(const std::byte* block, const BlockPlaces& out) {
  copy_half(block, out.scale);
  unpack_nibbles(block + 6, u32_at(block + 2), out.codes);
}

void unpack_q5_1(const std::byte* block, const BlockPlaces& out) {
  copy_half(block, out.scale);
  copy_half(block + 2, out.minimum);
  unpack_nibbles(block + 8, u32_at(block + 4), out.codes);
}

void unpack_q4_k(const std::byte* block, const BlockPlaces& out) {
  unpack_k(block, block + 16, nullptr, out);
}

void unpack_q5_k(const std::byte* block, const BlockPlaces& out) {
  unpack_k(block, block + 48, block + 16, out);
}

// Low halves of 4 bits in 128 bytes, high 2 bits in 64, scales of 16 values in 16, then the scale.
void unpack_q6_k(const std::byte* block, const BlockPlaces& out) {
  copy_half(block + 208, out.scale);
  std::memcpy(out.scale_factors, block + 192, 16);
  for (int i = 0; i < kSuper; i += 8) {
    const int half = i / 128;  // halves of a block are stored alike
    const int quarter = i % 128 / 32;
    const int j = i % 32;
    const std::byte* low = block + half * 64 + quarter % 2 * 32 + j;
    const std::byte* high = block + 128 + half * 32 + j;
    const uint64_t codes =
        shifted(u64_at(low), quarter / 2 * 4, 0xf) | shifted(u64_at(high), quarter * 2, 3) << 4;
    std::memcpy(out.codes + i, &codes, sizeof(codes));
  }
}

void decode_block(WeightFormat format, const BlockPlaces& block, int64_t values, float* out) {
  const WeightEncoding stored = encoding(format);
  for (int64_t index = 0; index < values / stored.block; ++index) {
    float scale = to_f32(*block.scale);
    float minimum = stored.minimum ? to_f32(*block.minimum) : 0;
    if (stored.superblock > 0) {
      scale *= static_cast<float>(block.scale_factors[index]);
      minimum *= stored.minimum ? static_cast<float>(block.minimum_factors[index]) : 0;
    }
    const int64_t first = index * stored.block;
    for (int64_t i = first; i < first + stored.block; ++i) {
      const float product = scale * static_cast<float>(block.codes[i] - stored.offset);
      out[i] = stored.minimum ? product + minimum : product;
    }
  }
}

}  // namespace tessera
