#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/pages/page_codec.h"
#include "kernels/cpu/pages/token_codes_avx2.h"
#include "kernels/cpu/pages/token_ops.h"
#include "kernels/cpu/simd/limits.h"
#include "kernels/kv/codebook_codes.h"
#include "kernels/kv/rotation_levels.h"

// Compiled without contraction of a * b + c, so that the arithmetic equals the oracle's.
namespace tessera::avx2 {
namespace {

// ---- floats to codes

// Scale and zero of a token's key or value in a page.
struct Range {
  float scale;
  float zero;

  static float f16_at(const std::byte* at) {
    uint16_t bits;
    std::memcpy(&bits, at, sizeof(bits));
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
  }
  static Range of(const Part& part) { return {f16_at(part.scale), f16_at(part.zero)}; }
  float number(uint32_t code) const { return zero + scale * static_cast<float>(code); }
};

struct Extent {
  float lowest;
  float highest;
};

// Ranges of a token's key and value, stored in the page. The arithmetic is that of code_range().
// Both are computed at once, because latency bounds the computation.
struct Ranges {
  Ranges(Extent key_extent, Extent value_extent, const Part& key_part, const Part& value_part) {
    const auto ones = [](const Part& part) { return static_cast<float>((1 << part.bits) - 1); };
    const __m128 lowest = _mm_setr_ps(key_extent.lowest, value_extent.lowest, 0, 0);
    const __m128 highest = _mm_setr_ps(key_extent.highest, value_extent.highest, 0, 0);
    const __m128 zeros =
        stored(_mm_add_ps(lowest, _mm_setzero_ps()), key_part.zero, value_part.zero);
    const __m128 steps =
        _mm_div_ps(_mm_sub_ps(highest, zeros), _mm_setr_ps(ones(key_part), ones(value_part), 1, 1));
    const __m128 scales =
        stored(_mm_max_ps(steps, _mm_setzero_ps()), key_part.scale, value_part.scale);
    key = {_mm_cvtss_f32(scales), _mm_cvtss_f32(zeros)};
    value = {_mm_cvtss_f32(_mm_movehdup_ps(scales)), _mm_cvtss_f32(_mm_movehdup_ps(zeros))};
  }

  Range key;
  Range value;

 private:
  static __m128 stored(__m128 numbers, std::byte* key_at, std::byte* value_at) {
    const __m128 within =
        _mm_min_ps(_mm_max_ps(numbers, _mm_set1_ps(-kLargestF16)), _mm_set1_ps(kLargestF16));
    const __m128i halves = _mm_cvtps_ph(within, _MM_FROUND_TO_NEAREST_INT);
    const auto both = static_cast<uint32_t>(_mm_cvtsi128_si32(halves));
    const auto key_bits = static_cast<uint16_t>(both);
    const auto value_bits = static_cast<uint16_t>(both >> 16);
    std::memcpy(key_at, &key_bits, sizeof(key_bits));
    std::memcpy(value_at, &value_bits, sizeof(value_bits));
    return _mm_cvtph_ps(halves);
  }
};

// Clamping before rounding gives the same result, because both bounds are integers.
class Encoder {
 public:
  Encoder(const Range& range, int32_t bits)
      : scale_(_mm256_set1_ps(range.scale)),
        zero_(_mm256_set1_ps(range.zero)),
        last_(_mm256_set1_ps(static_cast<float>((1 << bits) - 1))),
        positive_(_mm256_set1_epi32(range.scale > 0 ? -1 : 0)) {}

  // Returns: codes of 32 floats, one byte each. eight(i) is the i-th vector of floats.
  template <class Eight>
  __m256i codes_of(Eight&& eight) const {
    const __m256i first = _mm256_packus_epi32(words_of(eight(0)), words_of(eight(1)));
    const __m256i second = _mm256_packus_epi32(words_of(eight(2)), words_of(eight(3)));
    return _mm256_and_si256(in_order(_mm256_packus_epi16(first, second)), positive_);
  }

 private:
  __m256i words_of(__m256 x) const {
    const __m256 code = _mm256_div_ps(_mm256_sub_ps(x, zero_), scale_);
    return _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(code, _mm256_setzero_ps()), last_));
  }

  __m256 scale_;
  __m256 zero_;
  __m256 last_;
  __m256i positive_;
};

Extent extent_of(const Numbers& numbers, int32_t head_dim) {
  __m256 lowest = _mm256_load_ps(numbers.of);
  __m256 highest = lowest;
  for (int32_t channel = kLanes; channel < head_dim; channel += kLanes) {
    const __m256 x = _mm256_load_ps(numbers.of + channel);
    lowest = _mm256_min_ps(lowest, x);
    highest = _mm256_max_ps(highest, x);
  }
  alignas(32) float low[kLanes];
  alignas(32) float high[kLanes];
  _mm256_store_ps(low, lowest);
  _mm256_store_ps(high, highest);
  return {*std::min_element(low, low + kLanes), *std::max_element(high, high + kLanes)};
}

void encode(const Numbers& numbers, int32_t head_dim, const Encoder& encoder, Codes& codes) {
  for (int32_t channel = 0; channel < head_dim; channel += kBytes) {
    store(codes.of + channel, encoder.codes_of([&](int32_t i) {
      return _mm256_load_ps(numbers.of + channel + i * kLanes);
    }));
  }
}

// Encodes one side of a token alone.
void encode_side(const Numbers& numbers, int32_t head_dim, const Part& part, Codes& codes) {
  using Codebook = CodebookCodes<Numbers>;
  if (has_codebook(part.bits)) {
    const f16 scale = to_stored_f16(Codebook::scale(numbers.of, head_dim));
    std::memcpy(part.scale, &scale, sizeof(scale));
    Codebook::encode(numbers.of, head_dim, to_f32(scale), codes.of);
    return;
  }
  const Extent extent = extent_of(numbers, head_dim);
  const Ranges ranges(extent, extent, part, part);
  encode(numbers, head_dim, Encoder(ranges.key, part.bits), codes);
}

// ---- codes to codes

// Lowest and highest decoded float. Rounding keeps the order, so the lowest and highest codes give
// them.
Extent extent_of(Codes& codes, int32_t head_dim, const Range& range) {
  store(codes.of + head_dim, _mm256_set1_epi8(static_cast<char>(codes.of[0])));
  __m256i low = load(codes.of);
  __m256i high = low;
  for (int32_t channel = kBytes; channel < head_dim; channel += kBytes) {
    low = _mm256_min_epu8(low, load(codes.of + channel));
    high = _mm256_max_epu8(high, load(codes.of + channel));
  }
  // minpos finds the lowest of 8 words; for bytes, the lower of each pair is taken first.
  const auto lowest = [](__m256i v) {
    const __m128i half = _mm_min_epu8(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    const __m128i words = _mm_min_epu8(half, _mm_srli_epi16(half, 8));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_minpos_epu16(words))) & 0xffu;
  };
  const __m256i all = _mm256_set1_epi8(-1);
  return {range.number(lowest(low)), range.number(255u - lowest(_mm256_xor_si256(high, all)))};
}

// Encodes codes again. `from` is the range of the present codes. Codes of 4 bits or fewer are few,
// so each is encoded once and then looked up.
void recode(const Range& from, int32_t from_bits, int32_t head_dim, const Encoder& encoder,
            Codes& codes) {
  const __m256 scale = _mm256_set1_ps(from.scale);
  const __m256 zero = _mm256_set1_ps(from.zero);
  const auto numbers = [&](__m256i old) {
    return _mm256_add_ps(zero, _mm256_mul_ps(scale, _mm256_cvtepi32_ps(old)));
  };
  if (from_bits > 4) {
    for (int32_t channel = 0; channel < head_dim; channel += kBytes) {
      store(codes.of + channel, encoder.codes_of([&](int32_t i) {
        return numbers(codes_of_8(codes.of + channel + i * kLanes));
      }));
    }
    return;
  }
  const __m256i first = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i table = encoder.codes_of([&](int32_t i) {
    return numbers(_mm256_add_epi32(first, _mm256_set1_epi32(i % 2 * kLanes)));
  });
  for (int32_t channel = 0; channel < head_dim; channel += kBytes) {
    store(codes.of + channel, _mm256_shuffle_epi8(table, load(codes.of + channel)));
  }
}

// ---- floats

void load_floats(const KvPageLayout& layout, TokenPlace from, Numbers& keys, Numbers& values) {
  if (layout.format != kKvF16) {
    decode_token(layout, from.page, from.token, keys.of, values.of);
    return;
  }
  const int32_t tile = from.token / kTile;
  const int32_t lane = from.token % kTile;
  const std::byte* key = from.page + layout.keys_offset(tile) + layout.key_offset(lane, 0);
  const std::byte* value = from.page + layout.values_offset(tile) + layout.value_offset(lane, 0);
  alignas(16) uint16_t halves[kMaxHeadDim];
  for (int32_t channel = 0; channel < layout.head_dim; ++channel) {
    std::memcpy(halves + channel, key + int64_t{channel} * kTile * 2, sizeof(uint16_t));
  }
  const auto numbers = [](const void* eight) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(eight)));
  };
  for (int32_t channel = 0; channel < layout.head_dim; channel += kLanes) {
    _mm256_store_ps(keys.of + channel, numbers(halves + channel));
    _mm256_store_ps(values.of + channel, numbers(value + 2 * channel));
  }
}

// ---- the ops

void demote_token(const TileShape& high, TokenPlace from, const TileShape& low, TokenPlace to,
                  const float* key_weights) {
  if (!low.layout.format.is_codes()) {
    scalar::kTokenOps.demote(high, from, low, to, key_weights);
    return;
  }
  const int32_t head_dim = high.layout.head_dim;
  if (to.token % kTile == 0) {
    clear_tile(low.layout, code_tile(low.layout, to.page, to.token / kTile));
  }
  const Part key = key_part(low, to);
  const Part value = value_part(low, to);
  Codes keys;
  Codes values;
  if (high.layout.format.is_codes() && !high.layout.format.rotated && !low.layout.format.rotated) {
    const Part old_key = key_part(high, from);
    const Part old_value = value_part(high, from);
    load_keys(old_key, head_dim, keys);
    load_values(old_value, head_dim, values);
    const Range key_range = Range::of(old_key);
    const Range value_range = Range::of(old_value);
    const Ranges ranges(extent_of(keys, head_dim, key_range),
                        extent_of(values, head_dim, value_range), key, value);
    recode(key_range, old_key.bits, head_dim, Encoder(ranges.key, key.bits), keys);
    recode(value_range, old_value.bits, head_dim, Encoder(ranges.value, value.bits), values);
  } else {
    Numbers key_numbers;
    Numbers value_numbers;
    load_floats(high.layout, from, key_numbers, value_numbers);
    if (low.layout.format.rotated) {
      RotationLevels<Numbers>::rotate(key_numbers.of, head_dim);
      RotationLevels<Numbers>::rotate(value_numbers.of, head_dim);
    }
    if (has_codebook(key.bits) || has_codebook(value.bits)) {
      encode_side(key_numbers, head_dim, key, keys);
      encode_side(value_numbers, head_dim, value, values);
    } else {
      const Ranges ranges(extent_of(key_numbers, head_dim), extent_of(value_numbers, head_dim), key,
                          value);
      encode(key_numbers, head_dim, Encoder(ranges.key, key.bits), keys);
      encode(value_numbers, head_dim, Encoder(ranges.value, value.bits), values);
    }
  }
  store_keys(keys, head_dim, key);
  store_values(values, head_dim, value);
}

void copy_token(const TileShape& shape, TokenPlace from, TokenPlace to) {
  const Part key = key_part(shape, from);
  const Part to_key = key_part(shape, to);
  for (int64_t line = 0; line < shape.key_bytes; line += kLine) {
    std::memcpy(to_key.lines + line + 4 * to_key.lane, key.lines + line + 4 * key.lane,
                sizeof(uint32_t));
  }
  const Part value = value_part(shape, from);
  const Part to_value = value_part(shape, to);
  ValueBits bits(value);
  ValueBits to_bits(to_value);
  for (int32_t channel = 0; channel < shape.layout.head_dim; channel += kBlock) {
    for (int32_t half = 0; half < kLine; half += kBytes) {
      to_bits.put_words(half, bits.load_words(half));
    }
    bits.next_block();
    to_bits.next_block();
  }
  std::memcpy(to_key.scale, key.scale, sizeof(f16));
  std::memcpy(to_value.scale, value.scale, sizeof(f16));
  if (key.zero != nullptr) {
    std::memcpy(to_key.zero, key.zero, sizeof(f16));
  }
  if (value.zero != nullptr) {
    std::memcpy(to_value.zero, value.zero, sizeof(f16));
  }
}

void copy_tokens(const TileShape& shape, std::span<const TokenMove> moves) {
  if (!shape.layout.format.is_codes()) {
    scalar::kTokenOps.copy(shape, moves);
    return;
  }
  for (const TokenMove& move : moves) {
    copy_token(shape, move.from, move.to);
  }
}

}  // namespace

const TokenOps kTokenOps{kHeadDimMultiple, copy_tokens, demote_token};

}  // namespace tessera::avx2
