#pragma once

#include <immintrin.h>

#include <cstring>

#include "kernels/cpu/pages/token_ops.h"
#include "kernels/cpu/simd/limits.h"
#include "kernels/kv/codebook.h"
#include "kernels/matrix/half.h"

// Reads and writes the codes of one token at their places in a page (kernels/kv/kv_page.h). Only
// files compiled with AVX2 include it.
namespace tessera::avx2 {

inline constexpr int32_t kTile = KvPageLayout::kKeyTile;
inline constexpr int32_t kLine = KvPageLayout::kLineBytes;
inline constexpr int32_t kLanes = 8;   // floats of a vector
inline constexpr int32_t kBytes = 32;  // codes of a vector
inline constexpr int32_t kBlock = 16;  // channels of a line of values
inline constexpr int64_t kHalf = sizeof(f16);

// A token's key or value. Every code takes one byte, at any number of bits. Bytes behind the last
// channel are padding.
struct Numbers {
  alignas(32) float of[kMaxHeadDim];
};
struct Codes {
  alignas(32) uint8_t of[kMaxHeadDim + 4 * kBytes];
};

inline __m256i load(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
inline void store(void* to, __m256i codes) {
  _mm256_storeu_si256(static_cast<__m256i*>(to), codes);
}
// Undoes the interleaving of vector halves that two pack instructions leave.
inline __m256i in_order(__m256i packed) {
  return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
inline __m256i codes_of_8(const uint8_t* bytes) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
}

// ---- places of codes

// Key (or value) of a token in a tile of codes.
struct Part {
  std::byte* lines;  // of the tile
  std::byte* scale;  // f16, the token's own
  std::byte* zero;   // f16; null for codes of a codebook
  int32_t bits;
  int32_t lane;  // the token in the tile
};
inline Part key_part(const TileShape& shape, TokenPlace place) {
  const int64_t tile = static_cast<uint32_t>(place.token) / kTile;
  const int32_t lane = place.token & (kTile - 1);
  std::byte* scale = place.page + shape.key_scales + (kTile * tile + lane) * kHalf;
  return {place.page + tile * shape.key_bytes, scale,
          shape.keys_have_zeros ? scale + shape.key_zeros : nullptr, shape.layout.format.key_bits,
          lane};
}
inline Part value_part(const TileShape& shape, TokenPlace place) {
  const int64_t tile = static_cast<uint32_t>(place.token) / kTile;
  const int32_t lane = place.token & (kTile - 1);
  std::byte* scales = place.page + shape.key_scales + (kTile * tile + lane) * kHalf;
  return {place.page + shape.values + tile * shape.value_bytes, scales + shape.value_scales,
          shape.values_have_zeros ? scales + shape.value_zeros : nullptr,
          shape.layout.format.value_bits, lane};
}

// Interleaves `even` and `odd` by 32 bits.
inline void store_zipped(__m256i even, __m256i odd, uint8_t* to) {
  const __m256i low = _mm256_unpacklo_epi32(even, odd);
  const __m256i high = _mm256_unpackhi_epi32(even, odd);
  store(to, _mm256_permute2x128_si256(low, high, 0x20));
  store(to + kBytes, _mm256_permute2x128_si256(low, high, 0x31));
}

// A key occupies the same 4 bytes of every line: 4 neighbouring channels for each sub-line. 8 lines
// are gathered at a time, so that no wide load waits for narrow stores.
template <int kBits>
void unpack_keys(const Part& part, int32_t head_dim, Codes& codes) {
  constexpr int32_t kShared = 8 / kBits;
  const __m256i ones = _mm256_set1_epi8(static_cast<char>((1 << kBits) - 1));
  const __m256i first = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const int32_t lines = static_cast<int32_t>(div_ceil(head_dim, 4 * kShared));
  const std::byte* line = part.lines + 4 * part.lane;
  uint8_t* to = codes.of;
  for (int32_t at = 0; at < lines; at += kLanes, line += kLanes * kLine) {
    const __m256i there = _mm256_cmpgt_epi32(_mm256_set1_epi32(lines - at), first);
    const __m256i words =
        _mm256_mask_i32gather_epi32(_mm256_setzero_si256(), reinterpret_cast<const int*>(line),
                                    _mm256_slli_epi32(first, 6), there, 1);
    const auto sub_lines = [&](int32_t i) {
      return _mm256_and_si256(_mm256_srl_epi32(words, _mm_cvtsi32_si128(i * kBits)), ones);
    };
    if constexpr (kShared == 1) {
      store(to, sub_lines(0));
    } else if constexpr (kShared == 2) {
      store_zipped(sub_lines(0), sub_lines(1), to);
    } else {
      // Interleaves sub-lines 0 and 1, and 2 and 3, by 32 bits; then the two results by 64 bits.
      const __m256i even[2] = {_mm256_unpacklo_epi32(sub_lines(0), sub_lines(1)),
                               _mm256_unpackhi_epi32(sub_lines(0), sub_lines(1))};
      const __m256i odd[2] = {_mm256_unpacklo_epi32(sub_lines(2), sub_lines(3)),
                              _mm256_unpackhi_epi32(sub_lines(2), sub_lines(3))};
      const __m256i fours[4] = {
          _mm256_unpacklo_epi64(even[0], odd[0]), _mm256_unpackhi_epi64(even[0], odd[0]),
          _mm256_unpacklo_epi64(even[1], odd[1]), _mm256_unpackhi_epi64(even[1], odd[1])};
      store(to, _mm256_permute2x128_si256(fours[0], fours[1], 0x20));
      store(to + kBytes, _mm256_permute2x128_si256(fours[2], fours[3], 0x20));
      store(to + 2 * kBytes, _mm256_permute2x128_si256(fours[0], fours[1], 0x31));
      store(to + 3 * kBytes, _mm256_permute2x128_si256(fours[2], fours[3], 0x31));
    }
    to += kShared * kBytes;
  }
}
template <int kBits>
void pack_keys(const Codes& codes, int32_t head_dim, const Part& part) {
  constexpr int32_t kShared = 8 / kBits;
  std::byte* line = part.lines + 4 * part.lane;
  const uint8_t* quad = codes.of;
  for (const uint8_t* end = quad + head_dim; quad < end; line += kLine) {
    uint32_t word = 0;
    for (int32_t i = 0; i < kShared; ++i, quad += sizeof(word)) {
      uint32_t four;
      std::memcpy(&four, quad, sizeof(four));
      word |= four << (i * kBits);
    }
    std::memcpy(line, &word, sizeof(word));
  }
}

// A unit of three lines holds 32 channels.
inline void pack_codebook_keys(const Codes& codes, int32_t head_dim, const Part& part) {
  constexpr uint32_t kLowTwo = 0x03030303;
  constexpr uint32_t kOne = 0x01010101;
  std::byte* line = part.lines + 4 * part.lane;
  for (int32_t channel = 0; channel < head_dim; channel += kBytes, line += 3 * kLine) {
    uint32_t fours[8];
    std::memcpy(fours, codes.of + channel, sizeof(fours));
    const uint32_t words[3] = {
        fours[0] | fours[1] << 3 | (fours[6] & kLowTwo) << 6,
        fours[2] | fours[3] << 3 | (fours[7] & kLowTwo) << 6,
        fours[4] | fours[5] << 3 | (fours[6] >> 2 & kOne) << 6 | (fours[7] >> 2 & kOne) << 7};
    for (int32_t i = 0; i < 3; ++i) {
      std::memcpy(line + i * kLine, words + i, sizeof(uint32_t));
    }
  }
}

// A unit of three lines holds 16 channels.
inline void pack_six_bit_keys(const Codes& codes, int32_t head_dim, const Part& part) {
  constexpr uint32_t kLowTwo = 0x03030303;
  std::byte* line = part.lines + 4 * part.lane;
  for (int32_t channel = 0; channel < head_dim; channel += kBlock, line += 3 * kLine) {
    uint32_t fours[4];
    std::memcpy(fours, codes.of + channel, sizeof(fours));
    for (int32_t i = 0; i < 3; ++i) {
      const uint32_t word = fours[i] | (fours[3] >> 2 * i & kLowTwo) << 6;
      std::memcpy(line + i * kLine, &word, sizeof(word));
    }
  }
}

// No format of 3 or 6 bits comes here, because tokens of rotated formats are decoded first.
inline void load_keys(const Part& part, int32_t head_dim, Codes& codes) {
  switch (part.bits) {
    case 8:
      return unpack_keys<8>(part, head_dim, codes);
    case 4:
      return unpack_keys<4>(part, head_dim, codes);
    default:
      return unpack_keys<2>(part, head_dim, codes);
  }
}
// Clears the codes behind the last channel, because they share lines with codes of channels.
inline void store_keys(Codes& codes, int32_t head_dim, const Part& part) {
  store(codes.of + head_dim, _mm256_setzero_si256());  // also the rest of a unit
  switch (part.bits) {
    case 8:
      return pack_keys<8>(codes, head_dim, part);
    case 6:
      return pack_six_bit_keys(codes, head_dim, part);
    case 4:
      return pack_keys<4>(codes, head_dim, part);
    case 3:
      return pack_codebook_keys(codes, head_dim, part);
    default:
      return pack_keys<2>(codes, head_dim, part);
  }
}

// A value occupies some bits of one byte in each lane of a line for every 16 channels. Blocks
// follow one another; with 1 and 3 bits, two blocks share a line, or three lines.
class ValueBits {
 public:
  explicit ValueBits(const Part& part) : bits_(part.bits), quad_(part.lane / 4) {
    const int32_t first = quad_ * bits_;
    byte_ = 8 * (part.lane % 4);
    line_ = part.lines + first / 8 * kLine;
    shift_ = byte_ + first % 8;
    if (has_codebook(bits_)) {
      unit_ = part.lines;
      find_in_unit();
    }
  }
  void next_block() {
    odd_ = !odd_;
    if (has_codebook(bits_)) {
      unit_ += odd_ ? 0 : 3 * kLine;
      find_in_unit();
    } else if (bits_ > 1) {
      line_ += bits_ / 2 * kLine;
    } else {
      line_ += odd_ ? 0 : kLine;
      shift_ += odd_ ? 4 : -4;
    }
  }

  // Codes of 8 channels, as words, `half` bytes into a line.
  __m256i load_words(int32_t half) const {
    const auto part = [half](const std::byte* line, int32_t shift, int32_t bits) {
      return _mm256_and_si256(_mm256_srl_epi32(load(line + half), _mm_cvtsi32_si128(shift)),
                              _mm256_set1_epi32((1 << bits) - 1));
    };
    if (second_ == nullptr) {
      return part(line_, shift_, bits_);
    }
    return _mm256_or_si256(part(line_, shift_, 2),
                           _mm256_slli_epi32(part(second_, second_shift_, 1), 2));
  }
  // Codes of other tokens in the same lanes stay.
  void put_words(int32_t half, __m256i codes) const {
    const auto put = [half](std::byte* line, int32_t shift, int32_t bits, __m256i words) {
      const __m128i by = _mm_cvtsi32_si128(shift);
      const __m256i ones = _mm256_set1_epi32((1 << bits) - 1);
      const __m256i others = _mm256_andnot_si256(_mm256_sll_epi32(ones, by), load(line + half));
      store(line + half, _mm256_or_si256(others, _mm256_sll_epi32(words, by)));
    };
    if (second_ == nullptr) {
      put(line_, shift_, bits_, codes);
      return;
    }
    put(line_, shift_, 2, _mm256_and_si256(codes, _mm256_set1_epi32(3)));
    put(second_, second_shift_, 1, _mm256_srli_epi32(codes, 2));
  }

 private:
  void find_in_unit() {
    const int32_t i = quad_ + (odd_ ? 4 : 0);  // sub-line of the unit
    if (i < 6) {
      line_ = unit_ + i / 2 * kLine;
      shift_ = byte_ + i % 2 * 3;
      second_ = nullptr;
    } else {
      line_ = unit_ + (i - 6) * kLine;
      shift_ = byte_ + 6;
      second_ = unit_ + 2 * kLine;
      second_shift_ = byte_ + i;
    }
  }

  int32_t bits_;
  int32_t quad_;  // of the token in its tile
  int32_t byte_ = 0;
  bool odd_ = false;  // second block of two
  std::byte* line_ = nullptr;
  int32_t shift_ = 0;
  // 3 bits only.
  std::byte* unit_ = nullptr;
  std::byte* second_ = nullptr;  // of the highest bit; null: it is with the others
  int32_t second_shift_ = 0;
};

inline void load_values(const Part& part, int32_t head_dim, Codes& codes) {
  ValueBits bits(part);
  const auto block = [&] {  // as 16 words of 16 bits
    const __m256i words = _mm256_packus_epi32(bits.load_words(0), bits.load_words(kBytes));
    bits.next_block();
    return words;
  };
  for (int32_t channel = 0; channel < head_dim; channel += 2 * kBlock) {
    const __m256i first = block();
    const __m256i second = channel + kBlock < head_dim ? block() : _mm256_setzero_si256();
    store(codes.of + channel, in_order(_mm256_packus_epi16(first, second)));
  }
}

inline void store_values(const Codes& codes, int32_t head_dim, const Part& part) {
  ValueBits bits(part);
  for (int32_t channel = 0; channel < head_dim; channel += kBlock, bits.next_block()) {
    bits.put_words(0, codes_of_8(codes.of + channel));
    if (channel + kLanes < head_dim) {
      bits.put_words(kBytes, codes_of_8(codes.of + channel + kLanes));
    }
  }
}

}  // namespace tessera::avx2
