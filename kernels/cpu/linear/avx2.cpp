#include <immintrin.h>

#include "kernels/cpu/linear/tile_table.h"
#include "kernels/matrix/half.h"

namespace tessera {
namespace {

struct Simd256 {
  using Floats = __m256;
  using Ints = __m256i;
  static constexpr int kLanes = 8;
  static constexpr int kRegisters = 16;
  static constexpr int kPrefetchBytes = 4096;

  TESSERA_INLINE static Ints mask(int64_t lanes) {
    const Ints places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(broadcast(lanes < kLanes ? static_cast<int32_t>(lanes) : kLanes),
                              places);
  }
  TESSERA_INLINE static Floats load(const float* from, Ints mask) {
    return _mm256_maskload_ps(from, mask);
  }
  TESSERA_INLINE static void store(float* to, Floats value) { _mm256_storeu_ps(to, value); }
  TESSERA_INLINE static void store(float* to, Ints mask, Floats value) {
    _mm256_maskstore_ps(to, mask, value);
  }
  TESSERA_INLINE static Ints load_units(const std::byte* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  TESSERA_INLINE static Ints load_f16_units(const std::byte* from) {  // as f32
    return _mm256_castps_si256(
        _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }
  TESSERA_INLINE static void prefetch(const std::byte* from) {
    _mm_prefetch(reinterpret_cast<const char*>(from), _MM_HINT_T0);
  }
  TESSERA_INLINE static Ints broadcast_unit(const std::byte* from) {
    int32_t unit;
    __builtin_memcpy(&unit, from, sizeof(unit));
    return _mm256_set1_epi32(unit);
  }
  TESSERA_INLINE static Ints broadcast(int32_t value) { return _mm256_set1_epi32(value); }
  TESSERA_INLINE static Floats broadcast(float value) { return _mm256_set1_ps(value); }
  TESSERA_INLINE static Floats zero() { return _mm256_setzero_ps(); }
  TESSERA_INLINE static Floats to_bits(Ints value) { return _mm256_castsi256_ps(value); }
  TESSERA_INLINE static Floats to_floats(Ints value) { return _mm256_cvtepi32_ps(value); }
  TESSERA_INLINE static Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  TESSERA_INLINE static Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  TESSERA_INLINE static Floats multiply_add(Floats a, Floats b, Floats sum) {
    return _mm256_fmadd_ps(a, b, sum);
  }

  // A bf16 is the upper half of an f32.
  TESSERA_INLINE static Floats even_bf16(Ints pairs) {
    return to_bits(_mm256_slli_epi32(pairs, 16));
  }
  TESSERA_INLINE static Floats odd_bf16(Ints pairs) {
    return to_bits(_mm256_and_si256(pairs, _mm256_set1_epi32(-65536)));
  }
  // The bf16 of a unit become two vectors of f32, once for all rows. Activations are f32 already.
  template <WeightFormat kFormat>
  static constexpr int kParts = kFormat == WeightFormat::bf16 ? 2 : 1;
  template <WeightFormat kFormat>
  TESSERA_INLINE static Ints load_part(const std::byte* from, int part) {
    if constexpr (kFormat == WeightFormat::bf16) {
      asm volatile("" : : : "memory");  // loads again: pairs that stay in registers spill sums
      const Ints pairs = load_units(from);
      return _mm256_slli_epi32(part == 0 ? pairs : _mm256_srli_epi32(pairs, 16), 16);
    }
    return kFormat == WeightFormat::f16 ? load_f16_units(from) : load_units(from);
  }
  template <WeightFormat kFormat>
  TESSERA_INLINE static Floats multiply_add(Floats sum, Ints weights, Ints input) {
    if constexpr (kFormat == WeightFormat::bf16) {
      // With the intrinsic, GCC 12 adds to copies of the sums, and spills them.
      asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(weights), "x"(input));
      return sum;
    }
    return _mm256_fmadd_ps(to_bits(weights), to_bits(input), sum);
  }

  TESSERA_INLINE static Floats load_f16(const std::byte* from) {
    return to_bits(load_f16_units(from));
  }
  TESSERA_INLINE static Floats load_factors(const std::byte* from) {  // int8
    return to_floats(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
  }
  TESSERA_INLINE static Ints shift_left(Ints value, int bits) {
    return _mm256_slli_epi32(value, bits);
  }
  TESSERA_INLINE static Ints shift_right(Ints value, int bits) {
    return _mm256_srli_epi32(value, bits);
  }
  TESSERA_INLINE static Ints or_masked(Ints value, Ints bits, int32_t mask) {
    return _mm256_or_si256(value, _mm256_and_si256(bits, broadcast(mask)));
  }

  // GCC 12 turns the additions of a block, if it sees them, into a tree, and spills its products.
  TESSERA_INLINE static Ints add_words(Ints sum, Ints products) {
    asm("vpaddw %1, %0, %0" : "+x"(sum) : "x"(products));
    return sum;
  }
  TESSERA_INLINE static Ints add_doublewords(Ints sum, Ints products) {
    asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(products));
    return sum;
  }

  // vpmaddubsw would saturate with codes of 8 bits. Even and odd bytes of the weights become 16-bit
  // numbers, and activations are stored as such (convert_bytes).
  struct Bytes {
    static constexpr int kParts = 2;
    static constexpr int kLineInputs = 4;

    TESSERA_INLINE static void unpack(const std::byte* line, const std::byte* /*high*/,
                                      int /*index*/, Ints (&parts)[kParts]) {
      const Ints bytes = load_units(line);
      parts[0] = _mm256_and_si256(bytes, _mm256_set1_epi16(0xff));
      parts[1] = _mm256_srli_epi16(bytes, 8);
    }
    TESSERA_INLINE static Ints start(const std::byte* correction) {
      return broadcast_unit(correction);
    }
    TESSERA_INLINE static Ints dot(Ints sum, Ints weights, Ints input) {
      return add_doublewords(sum, _mm256_madd_epi16(weights, input));
    }
    TESSERA_INLINE static Ints finish(Ints sum, const std::byte* /*correction*/) { return sum; }
  };

  // Codes of up to 6 bits are small enough for vpmaddubsw. With 4 bits, sums of a whole block stay
  // in 16 bits: 16 products in a lane, each at most 15 * 127.
  template <WeightFormat kFormat>
  struct Nibbles {
    static constexpr int kParts = 2;
    static constexpr int kLineInputs = 8;
    static constexpr int kHighBits = encoding(kFormat).bits - 4;
    static constexpr bool kHasMinimum = encoding(kFormat).minimum;
    static constexpr bool kSumsWords = kHighBits == 0;

    TESSERA_INLINE static void unpack(const std::byte* line, const std::byte* high, int index,
                                      Ints (&parts)[kParts]) {
      const Ints nibbles = load_units(line);
      const Ints mask = _mm256_set1_epi8(0x0f);
      parts[0] = _mm256_and_si256(nibbles, mask);
      parts[1] = _mm256_and_si256(_mm256_srli_epi32(nibbles, 4), mask);
      if constexpr (kHighBits > 0) {
        parts[0] = add_high<Simd256, kHighBits>(parts[0], high, 2 * index);
        parts[1] = add_high<Simd256, kHighBits>(parts[1], high, 2 * index + 1);
      }
    }
    TESSERA_INLINE static Ints start(const std::byte* correction) {
      return kHasMinimum || kSumsWords ? _mm256_setzero_si256() : broadcast_unit(correction);
    }
    TESSERA_INLINE static Ints pairs_to_doublewords(Ints words) {
      return _mm256_madd_epi16(words, _mm256_set1_epi16(1));
    }
    TESSERA_INLINE static Ints dot(Ints sum, Ints weights, Ints input) {
      const Ints products = _mm256_maddubs_epi16(weights, input);
      return kSumsWords ? add_words(sum, products)
                        : add_doublewords(sum, pairs_to_doublewords(products));
    }
    TESSERA_INLINE static Ints finish(Ints sum, const std::byte* correction) {
      if constexpr (!kSumsWords) {
        return sum;
      }
      const Ints wide = pairs_to_doublewords(sum);
      return kHasMinimum ? wide : _mm256_add_epi32(wide, broadcast_unit(correction));
    }
  };

  // The bits of a code, moved to the places of a bf16, give 2^-120 of its value, also for subnormal
  // codes.
  struct E4m3 {
    TESSERA_INLINE static Ints place(Ints codes) {
      return _mm256_and_si256(_mm256_srai_epi16(codes, 4), _mm256_set1_epi16(-0x7810));
    }
    TESSERA_INLINE static void to_pairs(Ints codes, Ints& even, Ints& odd) {
      even = place(_mm256_slli_epi16(codes, 8));
      odd = place(codes);
    }
    TESSERA_INLINE static Floats multiply_add(Floats sum, Ints pairs, Ints input) {
      const Floats up = broadcast(0x1p120f);
      sum = _mm256_fmadd_ps(multiply(even_bf16(pairs), up), even_bf16(input), sum);
      return _mm256_fmadd_ps(multiply(odd_bf16(pairs), up), odd_bf16(input), sum);
    }
  };
};
static_assert(16 * 15 * 127 <= 32767 && 2 * 63 * 127 <= 32767);

TESSERA_INLINE __m256 load_inputs(const ActivationRow& row, int64_t at) {
  return at + 8 <= row.cols ? _mm256_loadu_ps(row.in + at)
         : at < row.cols    ? _mm256_maskload_ps(row.in + at, Simd256::mask(row.cols - at))
                            : _mm256_setzero_ps();
}

// Writes the first `bytes` bytes of a vector, or all of it.
TESSERA_INLINE void store_bytes(std::byte* to, __m128i value, int64_t bytes) {
  if (bytes >= 16) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), value);
  } else {
    __builtin_memcpy(to, &value, static_cast<size_t>(bytes));
  }
}

void convert_f32(const ActivationRow& row) {
  for (int64_t at = 0; at * 4 < row.out_bytes; at += 8) {
    _mm256_maskstore_ps(reinterpret_cast<float*>(row.out) + at,
                        Simd256::mask(row.out_bytes / 4 - at), load_inputs(row, at));
  }
}

TESSERA_INLINE __m256i round_to_bf16(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(
      _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet_nan = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
  const __m256 is_nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
  return _mm256_blendv_epi8(rounded, quiet_nan, _mm256_castps_si256(is_nan));
}

void convert_bf16(const ActivationRow& row) {  // stored as f32
  for (int64_t at = 0; at * 4 < row.out_bytes; at += 8) {
    const __m256i rounded = _mm256_slli_epi32(round_to_bf16(load_inputs(row, at)), 16);
    _mm256_maskstore_ps(reinterpret_cast<float*>(row.out) + at,
                        Simd256::mask(row.out_bytes / 4 - at), _mm256_castsi256_ps(rounded));
  }
}

// A NaN survives, because it is the second operand of min and max.
void convert_f16(const ActivationRow& row) {
  const __m256 max = _mm256_set1_ps(kLargestF16);
  const __m256 min = _mm256_set1_ps(-kLargestF16);
  for (int64_t at = 0; at * 4 < row.out_bytes; at += 8) {
    const __m256 in = _mm256_max_ps(min, _mm256_min_ps(max, load_inputs(row, at)));
    const __m256 rounded = _mm256_cvtph_ps(_mm256_cvtps_ph(in, _MM_FROUND_TO_NEAREST_INT));
    _mm256_maskstore_ps(reinterpret_cast<float*>(row.out) + at,
                        Simd256::mask(row.out_bytes / 4 - at), rounded);
  }
}

TESSERA_INLINE __m256i magnitude_bits(__m256 values) {
  return _mm256_and_si256(_mm256_castps_si256(values), _mm256_set1_epi32(0x7fffffff));
}

// Sets the scale. Returns: the factor for the inputs. Magnitudes have the order of their bits, and
// a NaN is above all of them. It reaches the scale, and so every output.
TESSERA_INLINE float find_scale(__m256i largest, float highest, float& scale) {
  __m128i half =
      _mm_max_epu32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0x4e));
  half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0xb1));
  const float magnitude = _mm_cvtss_f32(_mm_castsi128_ps(half));
  const bool vanishes = magnitude < 1e-30f;  // its inverse might not be finite
  scale = vanishes ? 0.0f : magnitude / highest;
  return vanishes ? 0.0f : highest / magnitude;
}

float find_row_scale(const ActivationRow& row, float highest) {
  __m256i largest = _mm256_setzero_si256();
  for (int64_t at = 0; at < row.cols; at += 8) {
    largest = _mm256_max_epu32(largest, magnitude_bits(load_inputs(row, at)));
  }
  return find_scale(largest, highest, *row.scale);
}

TESSERA_INLINE __m256i quantise(__m256 in, __m256 inverse) {
  const __m256 low = _mm256_max_ps(_mm256_mul_ps(in, inverse), _mm256_set1_ps(-127.0f));
  return _mm256_cvtps_epi32(_mm256_min_ps(low, _mm256_set1_ps(127.0f)));
}

// A block of activations as 16-bit numbers, eight in a vector.
template <int kInputs>
struct BlockCodes {
  __m128i words[kInputs / 8];
  float scale;
  int32_t sum;

  TESSERA_INLINE BlockCodes(const ActivationRow& row, int64_t at) {
    __m256 in[kInputs / 8];
    __m256i largest = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int i = 0; i < kInputs / 8; ++i) {
      in[i] = load_inputs(row, at + 8 * i);
      largest = _mm256_max_epu32(largest, magnitude_bits(in[i]));
    }
    const __m256 inverse = _mm256_set1_ps(find_scale(largest, 127.0f, scale));
    __m256i sums = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int i = 0; i < kInputs / 8; ++i) {
      const __m256i codes = quantise(in[i], inverse);
      sums = _mm256_add_epi32(sums, codes);
      words[i] = _mm_packs_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
    }
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1));
    sum = _mm_cvtsi128_si32(half);
  }
};

template <class T>
TESSERA_INLINE std::byte* append(std::byte* out, const T& value) {
  __builtin_memcpy(out, &value, sizeof(value));
  return out + sizeof(value);
}

// Codes are 16-bit numbers, of inputs 0, 2, 1 and 3 of four: those of the even bytes of a weight's
// unit, then those of its odd bytes.
void convert_bytes(const ActivationRow& row) {
  std::byte* out = row.out;
  const __m128i even_first = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
  for (int64_t at = 0; at < row.cols; at += 32) {
    const BlockCodes<32> block(row, at);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      out = append(out, _mm_shuffle_epi8(block.words[i], even_first));
    }
    out = append(out, block.scale);
    out = append(out, -encoding(WeightFormat::int8).offset * block.sum);
  }
}

template <WeightFormat kFormat>
void convert_nibbles(const ActivationRow& row) {
  constexpr WeightEncoding kStored = encoding(kFormat);
  constexpr int kInputs = kStored.block;
  std::byte* out = row.out;
  for (int64_t at = 0; at < row.cols; at += kInputs) {
    const BlockCodes<kInputs> block(row, at);
#pragma GCC unroll 2
    for (int i = 0; i < kInputs / 16; ++i) {
      out = append(out, _mm_packs_epi16(block.words[2 * i], block.words[2 * i + 1]));
    }
    out = append(out, block.scale);
    if constexpr (kStored.minimum) {
      out = append(out, block.scale * static_cast<float>(block.sum));
    } else {
      out = append(out, -kStored.offset * block.sum);
    }
  }
}

// Rounds to the nearest E4M3, stored as bf16, i.e. the upper halves of f32.
void convert_fp8(const ActivationRow& row) {
  const __m256 inverse = _mm256_set1_ps(find_row_scale(row, 448.0f));
  const __m256 sign_bit = _mm256_set1_ps(-0.0f);
  const __m256 shift = _mm256_set1_ps(0x1p14f);
  for (int64_t at = 0; at * 2 < row.out_bytes; at += 8) {
    const __m256 in = _mm256_mul_ps(load_inputs(row, at), inverse);
    const __m256 magnitude = _mm256_min_ps(_mm256_andnot_ps(sign_bit, in), _mm256_set1_ps(448.0f));
    const __m256i bits = _mm256_castps_si256(magnitude);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 20), _mm256_set1_epi32(1));
    const __m256 rounded = _mm256_castsi256_ps(
        _mm256_and_si256(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7ffff))),
                         _mm256_set1_epi32(-0x100000)));
    const __m256 subnormal = _mm256_sub_ps(_mm256_add_ps(magnitude, shift), shift);
    const __m256 small = _mm256_cmp_ps(magnitude, _mm256_set1_ps(0x1p-6f), _CMP_LT_OQ);
    const __m256 value =
        _mm256_or_ps(_mm256_blendv_ps(rounded, subnormal, small), _mm256_and_ps(sign_bit, in));
    const __m256i halves = _mm256_srli_epi32(_mm256_castps_si256(value), 16);
    const __m128i packed =
        _mm_packus_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
    store_bytes(row.out + at * 2, packed, row.out_bytes - at * 2);
  }
}

}  // namespace

namespace avx2 {

template <WeightFormat kFormat>
constexpr FormatKernels kBytes{convert_bytes, 2, kWide<Simd256, kFormat, 2, 4>,
                               kTall<Simd256, kFormat, 4, 2>};
template <WeightFormat kFormat>
constexpr FormatKernels kNibbles{convert_nibbles<kFormat>, 1, kWide<Simd256, kFormat, 2, 4>,
                                 kTall<Simd256, kFormat, 4, 2>};

constinit const LinearKernels kLinearKernels{{
    // in the order of WeightFormat
    {convert_f32, 4, kWide<Simd256, WeightFormat::f32, 3, 4>,
     kTall<Simd256, WeightFormat::f32, 6, 2>},
    {convert_bf16, 4, kWide<Simd256, WeightFormat::bf16, 2, 4>,
     kTall<Simd256, WeightFormat::bf16, 6, 2>},
    {convert_f16, 4, kWide<Simd256, WeightFormat::f16, 3, 4>,
     kTall<Simd256, WeightFormat::f16, 6, 2>},
    kBytes<WeightFormat::int8>,
    kNibbles<WeightFormat::int4>,
    {convert_fp8, 2, kWide<Simd256, WeightFormat::fp8, 1, 4>,
     kTall<Simd256, WeightFormat::fp8, 4, 1>},
    kNibbles<WeightFormat::int4_symmetric>,
    kNibbles<WeightFormat::int5_symmetric>,
    kNibbles<WeightFormat::int5>,
    kNibbles<WeightFormat::int4_super>,
    kNibbles<WeightFormat::int5_super>,
    kNibbles<WeightFormat::int6_super>,
    kNibbles<group_tile(WeightFormat::int4_group32)>,
    kNibbles<group_tile(WeightFormat::int4_group64)>,
    kNibbles<group_tile(WeightFormat::int4_group128)>,
    kNibbles<group_tile(WeightFormat::int4_row)>,
    kNibbles<group_tile(WeightFormat::int4_zero32)>,
    kNibbles<group_tile(WeightFormat::int4_zero64)>,
    kNibbles<group_tile(WeightFormat::int4_zero128)>,
    kNibbles<group_tile(WeightFormat::int4_zero_row)>,
    kBytes<group_tile(WeightFormat::int8_group32)>,
    kBytes<group_tile(WeightFormat::int8_group64)>,
    kBytes<group_tile(WeightFormat::int8_group128)>,
    kBytes<group_tile(WeightFormat::int8_row)>,
    {convert_groups<convert_fp8>, 2, kWide<Simd256, WeightFormat::fp8_group128, 1, 2>,
     kTall<Simd256, WeightFormat::fp8_group128, 4, 1>},
}};

}  // namespace avx2
}  // namespace tessera
