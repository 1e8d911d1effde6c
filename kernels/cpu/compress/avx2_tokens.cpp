#include <immintrin.h>

#include <bit>
#include <cstring>

#include "kernels/cpu/attention/limits.h"
#include "kernels/cpu/compress/token_ops.h"
#include "kernels/cpu/pages/page_codec.h"

// Compiled without contraction of a * b + c, so that the arithmetic is the oracle's.
namespace tessera::avx2 {
namespace {

constexpr int32_t kTile = KvPageLayout::kKeyTile;
constexpr int32_t kLine = KvPageLayout::kLineBytes;
constexpr int32_t kLanes = 8;
constexpr int32_t kBlock = 16;  // channels of a line of values

// A token's key or value.
struct Channels {
  alignas(32) float numbers[kMaxHeadDim];
};
// Neighbouring channels by four, a byte each, as a line of keys has them in one lane.
using Quads = uint32_t[kMaxHeadDim / 4 + 4];

struct Range {
  __m256 scale;
  __m256 zero;
};

__m256 f16_at(const std::byte* at) {
  return _mm256_set1_ps(to_f32(std::bit_cast<f16>(*reinterpret_cast<const uint16_t*>(at))));
}

uint32_t load_word(const std::byte* from) {
  uint32_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}
__m256i load_codes(const std::byte* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
void store_codes(std::byte* to, __m256i codes) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), codes);
}

// A token's parts in a tile of codes.
struct TokenCodes {
  TokenCodes(const KvPageLayout& layout, TokenPlace place)
      : format(layout.format), lane(place.token % kTile) {
    const int32_t tile = place.token / kTile;
    keys = place.page + layout.keys_offset(tile) + 4 * lane;
    values = place.page + layout.values_offset(tile);
    key_scale = place.page + layout.key_scales_offset(tile) + 2 * lane;
    key_zero = place.page + layout.key_zeros_offset(tile) + 2 * lane;
    value_scale = place.page + layout.value_scales_offset(tile) + 2 * lane;
    value_zero = place.page + layout.value_zeros_offset(tile) + 2 * lane;
  }

  KvFormat format;
  int32_t lane;
  std::byte* keys;    // the same 4 bytes of every line
  std::byte* values;  // of the tile
  std::byte* key_scale;
  std::byte* key_zero;
  std::byte* value_scale;
  std::byte* value_zero;

  // Where the codes of a block of channels stand: in the lanes of one line, at the same bits.
  struct Bits {
    std::byte* line;
    int32_t shift;
  };
  Bits value_bits(int32_t channel) const {
    const int32_t sub_line = 4 * (channel / kBlock) + lane / 4;
    const int32_t bits = sub_line * format.value_bits;
    return {values + int64_t{bits / 8} * kLine + channel % kBlock * 4, 8 * (lane % 4) + bits % 8};
  }
};

// ---- codes to numbers

__m256 number_of(__m256i codes, const Range& range) {
  return _mm256_add_ps(range.zero, _mm256_mul_ps(range.scale, _mm256_cvtepi32_ps(codes)));
}

template <int kBits>
void unpack_keys(const std::byte* keys, int32_t head_dim, Quads& quads) {
  constexpr int32_t kShared = 8 / kBits;
  constexpr uint32_t kOnes = ((1u << kBits) - 1) * 0x01010101u;
  for (int32_t quad = 0; quad < head_dim / 4; quad += kShared, keys += kLine) {
    const uint32_t word = load_word(keys);
    for (int32_t i = 0; i < kShared; ++i) {
      quads[quad + i] = word >> (i * kBits) & kOnes;
    }
  }
}

void decode_keys(const TokenCodes& from, int32_t head_dim, Channels& out) {
  Quads quads;
  switch (from.format.key_bits) {
    case 8:
      unpack_keys<8>(from.keys, head_dim, quads);
      break;
    case 4:
      unpack_keys<4>(from.keys, head_dim, quads);
      break;
    default:
      unpack_keys<2>(from.keys, head_dim, quads);
  }
  const Range range{f16_at(from.key_scale), f16_at(from.key_zero)};
  for (int32_t channel = 0; channel < head_dim; channel += kLanes) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(quads + channel / 4));
    _mm256_store_ps(out.numbers + channel, number_of(_mm256_cvtepu8_epi32(bytes), range));
  }
}

void decode_values(const TokenCodes& from, int32_t head_dim, Channels& out) {
  const Range range{f16_at(from.value_scale), f16_at(from.value_zero)};
  const __m256i ones = _mm256_set1_epi32((1 << from.format.value_bits) - 1);
  for (int32_t channel = 0; channel < head_dim; channel += kLanes) {
    const TokenCodes::Bits bits = from.value_bits(channel);
    const __m256i codes = _mm256_srl_epi32(load_codes(bits.line), _mm_cvtsi32_si128(bits.shift));
    _mm256_store_ps(out.numbers + channel, number_of(_mm256_and_si256(codes, ones), range));
  }
}

// ---- f16 to numbers

void decode_f16(const KvPageLayout& layout, TokenPlace from, Channels& keys, Channels& values) {
  const int32_t tile = from.token / kTile;
  const int32_t lane = from.token % kTile;
  const std::byte* key = from.page + layout.keys_offset(tile) + layout.key_offset(lane, 0);
  const std::byte* value = from.page + layout.values_offset(tile) + layout.value_offset(lane, 0);
  alignas(16) uint16_t halves[kMaxHeadDim];
  for (int32_t channel = 0; channel < layout.head_dim; ++channel) {
    std::memcpy(halves + channel, key + layout.key_offset(0, channel), sizeof(uint16_t));
  }
  const auto numbers = [](const void* eight) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(eight)));
  };
  for (int32_t channel = 0; channel < layout.head_dim; channel += kLanes) {
    _mm256_store_ps(keys.numbers + channel, numbers(halves + channel));
    _mm256_store_ps(values.numbers + channel, numbers(value + 2 * channel));
  }
}

// ---- numbers to codes

Range range_of(const Channels& channels, int32_t head_dim, int32_t bits, std::byte* scale,
               std::byte* zero) {
  __m256 lowest = _mm256_load_ps(channels.numbers);
  __m256 highest = lowest;
  for (int32_t channel = kLanes; channel < head_dim; channel += kLanes) {
    const __m256 x = _mm256_load_ps(channels.numbers + channel);
    lowest = _mm256_min_ps(lowest, x);
    highest = _mm256_max_ps(highest, x);
  }
  const auto fold = [](__m256 v, auto&& pick) {
    const __m128 four = pick(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = pick(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(pick(two, _mm_movehdup_ps(two)));
  };
  const CodeRange range =
      code_range(fold(lowest, [](__m128 a, __m128 b) { return _mm_min_ps(a, b); }),
                 fold(highest, [](__m128 a, __m128 b) { return _mm_max_ps(a, b); }), bits);
  std::memcpy(scale, &range.scale, sizeof(f16));
  std::memcpy(zero, &range.zero, sizeof(f16));
  return {_mm256_set1_ps(to_f32(range.scale)), _mm256_set1_ps(to_f32(range.zero))};
}

// Clamping before rounding is the same, since both bounds are whole.
class Encoder {
 public:
  Encoder(const Range& range, int32_t bits)
      : range_(range),
        last_(_mm256_set1_ps(static_cast<float>((1 << bits) - 1))),
        positive_(
            _mm256_castps_si256(_mm256_cmp_ps(range.scale, _mm256_setzero_ps(), _CMP_GT_OQ))) {}

  __m256i codes_of(__m256 x) const {
    const __m256 code = _mm256_div_ps(_mm256_sub_ps(x, range_.zero), range_.scale);
    const __m256 within = _mm256_min_ps(_mm256_max_ps(code, _mm256_setzero_ps()), last_);
    return _mm256_and_si256(_mm256_cvtps_epi32(within), positive_);
  }

 private:
  Range range_;
  __m256 last_;
  __m256i positive_;
};

template <int kBits>
void pack_keys(const Quads& quads, int32_t head_dim, std::byte* keys) {
  constexpr int32_t kShared = 8 / kBits;
  for (int32_t quad = 0; quad < head_dim / 4; quad += kShared, keys += kLine) {
    uint32_t word = 0;
    for (int32_t i = 0; i < kShared; ++i) {
      word |= quads[quad + i] << (i * kBits);
    }
    std::memcpy(keys, &word, sizeof(word));
  }
}

void encode_keys(const Channels& channels, int32_t head_dim, const TokenCodes& to) {
  const int32_t bits = to.format.key_bits;
  const Encoder encoder(range_of(channels, head_dim, bits, to.key_scale, to.key_zero), bits);
  const __m256i low_bytes = _mm256_setr_epi8(                       // of 4 lanes, into the first
      0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
      0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  Quads quads;
  for (int32_t channel = 0; channel < head_dim; channel += kLanes) {
    const __m256i codes = encoder.codes_of(_mm256_load_ps(channels.numbers + channel));
    const __m256i bytes = _mm256_shuffle_epi8(codes, low_bytes);
    quads[channel / 4] = static_cast<uint32_t>(_mm256_cvtsi256_si32(bytes));
    quads[channel / 4 + 1] =
        static_cast<uint32_t>(_mm_cvtsi128_si32(_mm256_extracti128_si256(bytes, 1)));
  }
  std::memset(quads + head_dim / 4, 0, 4 * sizeof(uint32_t));  // codes of no channel
  switch (bits) {
    case 8:
      pack_keys<8>(quads, head_dim, to.keys);
      break;
    case 4:
      pack_keys<4>(quads, head_dim, to.keys);
      break;
    default:
      pack_keys<2>(quads, head_dim, to.keys);
  }
}

// Other tokens' codes in the same lanes stay.
void put_values(const TokenCodes::Bits& bits, __m256i codes, __m256i ones) {
  const __m128i shift = _mm_cvtsi32_si128(bits.shift);
  const __m256i others = _mm256_andnot_si256(_mm256_sll_epi32(ones, shift), load_codes(bits.line));
  store_codes(bits.line, _mm256_or_si256(others, _mm256_sll_epi32(codes, shift)));
}

void encode_values(const Channels& channels, int32_t head_dim, const TokenCodes& to) {
  const int32_t bits = to.format.value_bits;
  const Encoder encoder(range_of(channels, head_dim, bits, to.value_scale, to.value_zero), bits);
  const __m256i ones = _mm256_set1_epi32((1 << bits) - 1);
  for (int32_t channel = 0; channel < head_dim; channel += kLanes) {
    put_values(to.value_bits(channel), encoder.codes_of(_mm256_load_ps(channels.numbers + channel)),
               ones);
  }
}

// ---- the ops

void demote_token(const KvPageLayout& high, TokenPlace from, const KvPageLayout& low,
                  TokenPlace to) {
  const int32_t head_dim = high.head_dim;
  Channels keys;
  Channels values;
  if (high.format.is_codes()) {
    const TokenCodes codes(high, from);
    decode_keys(codes, head_dim, keys);
    decode_values(codes, head_dim, values);
  } else if (high.format == kKvF16) {
    decode_f16(high, from, keys, values);
  } else {
    decode_token(high, from.page, from.token, keys.numbers, values.numbers);
  }
  if (to.token % kTile == 0) {
    clear_tile(low, code_tile(low, to.page, to.token / kTile));
  }
  const TokenCodes codes(low, to);
  encode_keys(keys, head_dim, codes);
  encode_values(values, head_dim, codes);
}

void copy_token(const KvPageLayout& layout, TokenPlace from, TokenPlace to) {
  if (!layout.format.is_codes()) {
    scalar::kTokenOps.copy(layout, from, to);
    return;
  }
  const TokenCodes source(layout, from);
  const TokenCodes target(layout, to);
  for (int64_t line = 0; line < layout.key_tile_bytes(); line += kLine) {
    std::memcpy(target.keys + line, source.keys + line, sizeof(uint32_t));
  }
  const __m256i ones = _mm256_set1_epi32((1 << layout.format.value_bits) - 1);
  for (int32_t channel = 0; channel < layout.head_dim; channel += kLanes) {
    const TokenCodes::Bits bits = source.value_bits(channel);
    const __m256i codes = _mm256_srl_epi32(load_codes(bits.line), _mm_cvtsi32_si128(bits.shift));
    put_values(target.value_bits(channel), _mm256_and_si256(codes, ones), ones);
  }
  std::memcpy(target.key_scale, source.key_scale, sizeof(f16));
  std::memcpy(target.key_zero, source.key_zero, sizeof(f16));
  std::memcpy(target.value_scale, source.value_scale, sizeof(f16));
  std::memcpy(target.value_zero, source.value_zero, sizeof(f16));
}

}  // namespace

const TokenOps kTokenOps{copy_token, demote_token};

}  // namespace tessera::avx2
