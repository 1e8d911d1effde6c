#include "models/gguf/block_types.h"

#include <cstring>

#include "kernels/half.h"

namespace tessera {
namespace {

constexpr int kSmall = 32;     // values of a block with one scale
constexpr int kSuper = 256;    // values of a block with scales of sub-blocks
constexpr int kSubBlocks = 8;  // of Q4_K and Q5_K

float half_at(const std::byte* bytes) {
  f16 half;
  std::memcpy(&half, bytes, sizeof(half));
  return to_f32(half);
}

uint32_t u32_at(const std::byte* bytes) {
  uint32_t value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

int byte_at(const std::byte* bytes, int i) {
  return static_cast<int>(bytes[i]);
}

// Value i of 32: the low halves of 16 bytes, then their high halves.
int nibble(const std::byte* codes, int i) {
  return i < 16 ? byte_at(codes, i) & 0xf : byte_at(codes, i - 16) >> 4;
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
void decode_k(const std::byte* block, const std::byte* codes, const std::byte* high, float* out) {
  const float scale = half_at(block);
  const float minimum = half_at(block + 2);
  for (int i = 0; i < kSubBlocks; ++i) {
    const SubScale sub = sub_scale(block + 4, i);
    const float d = scale * static_cast<float>(sub.scale);
    const float m = minimum * static_cast<float>(sub.minimum);
    const std::byte* bytes = codes + i / 2 * 32;
    for (int j = 0; j < 32; ++j) {
      int code = i % 2 == 0 ? byte_at(bytes, j) & 0xf : byte_at(bytes, j) >> 4;
      if (high != nullptr) code |= (byte_at(high, j) >> i & 1) << 4;
      *out++ = d * static_cast<float>(code) - m;
    }
  }
}

}  // namespace

void decode_q8_0(const std::byte* blocks, int64_t count, float* out) {
  for (; count > 0; --count, blocks += 34, out += kSmall) {
    const float d = half_at(blocks);
    for (int i = 0; i < kSmall; ++i) {
      out[i] = d * static_cast<float>(static_cast<int8_t>(blocks[2 + i]));
    }
  }
}

void decode_q4_0(const std::byte* blocks, int64_t count, float* out) {
  for (; count > 0; --count, blocks += 18, out += kSmall) {
    const float d = half_at(blocks);
    for (int i = 0; i < kSmall; ++i) {
      out[i] = d * static_cast<float>(nibble(blocks + 2, i) - 8);
    }
  }
}

void decode_q4_1(const std::byte* blocks, int64_t count, float* out) {
  for (; count > 0; --count, blocks += 20, out += kSmall) {
    const float d = half_at(blocks);
    const float m = half_at(blocks + 2);
    for (int i = 0; i < kSmall; ++i) {
      out[i] = d * static_cast<float>(nibble(blocks + 4, i)) + m;
    }
  }
}

void decode_q5_0(const std::byte* blocks, int64_t count, float* out) {
  for (; count > 0; --count, blocks += 22, out += kSmall) {
    const float d = half_at(blocks);
    const uint32_t high = u32_at(blocks + 2);
    for (int i = 0; i < kSmall; ++i) {
      const int code = nibble(blocks + 6, i) | static_cast<int>(high >> i & 1) << 4;
      out[i] = d * static_cast<float>(code - 16);
    }
  }
}

void decode_q5_1(const std::byte* blocks, int64_t count, float* out) {
  for (; count > 0; --count, blocks += 24, out += kSmall) {
    const float d = half_at(blocks);
    const float m = half_at(blocks + 2);
    const uint32_t high = u32_at(blocks + 4);
    for (int i = 0; i < kSmall; ++i) {
      const int code = nibble(blocks + 8, i) | static_cast<int>(high >> i & 1) << 4;
      out[i] = d * static_cast<float>(code) + m;
    }
  }
}

void decode_q4_k(const std::byte* blocks, int64_t count, float* out) {
  for (; count > 0; --count, blocks += 144, out += kSuper) {
    decode_k(blocks, blocks + 16, nullptr, out);
  }
}

void decode_q5_k(const std::byte* blocks, int64_t count, float* out) {
  for (; count > 0; --count, blocks += 176, out += kSuper) {
    decode_k(blocks, blocks + 48, blocks + 16, out);
  }
}

// Low halves of 4 bits in 128 bytes, high 2 bits in 64, scales of 16 values in 16, then the scale.
void decode_q6_k(const std::byte* blocks, int64_t count, float* out) {
  for (; count > 0; --count, blocks += 210, out += kSuper) {
    const float scale = half_at(blocks + 208);
    for (int i = 0; i < kSuper; ++i) {
      const int half = i / 128;  // halves of a block are stored alike
      const int quarter = i % 128 / 32;
      const int j = i % 32;
      const int low = byte_at(blocks + half * 64, quarter % 2 * 32 + j) >> quarter / 2 * 4 & 0xf;
      const int high = byte_at(blocks + 128 + half * 32, j) >> quarter * 2 & 3;
      const float d = scale * static_cast<float>(static_cast<int8_t>(blocks[192 + i / 16]));
      out[i] = d * static_cast<float>((low | high << 4) - 32);
    }
  }
}

}  // namespace tessera
