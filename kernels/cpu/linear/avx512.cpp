#include "kernels/cpu/linear/simd_avx512.h"
#include "kernels/matrix/half.h"

namespace tessera {
namespace {

// Returns: sixteen inputs, zero beyond the end of the row.
TESSERA_INLINE __m512 load_inputs(const ActivationRow& row, int64_t at) {
  return at + 16 <= row.cols ? _mm512_loadu_ps(row.in + at)
         : at < row.cols     ? _mm512_maskz_loadu_ps(Simd512::mask(row.cols - at), row.in + at)
                             : _mm512_setzero_ps();
}

// Writes the first `bytes` bytes of a vector, or all of it.
TESSERA_INLINE void store_bytes(std::byte* to, __m256i value, int64_t bytes) {
  if (bytes >= 32) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
  } else {
    _mm256_mask_storeu_epi8(to, (1u << bytes) - 1, value);
  }
}

void convert_f32(const ActivationRow& row) {
  for (int64_t at = 0; at * 4 < row.out_bytes; at += 16) {
    _mm512_mask_storeu_ps(row.out + at * 4, Simd512::mask(row.out_bytes / 4 - at),
                          load_inputs(row, at));
  }
}

void convert_bf16(const ActivationRow& row) {
  for (int64_t at = 0; at * 2 < row.out_bytes; at += 16) {
    store_bytes(row.out + at * 2, (__m256i)_mm512_cvtneps_pbh(load_inputs(row, at)),
                row.out_bytes - at * 2);
  }
}

// A NaN survives, because it is the second operand of min and max.
void convert_f16(const ActivationRow& row) {
  const __m512 max = _mm512_set1_ps(kLargestF16);
  const __m512 min = _mm512_set1_ps(-kLargestF16);
  for (int64_t at = 0; at * 4 < row.out_bytes; at += 16) {
    const __m512 in = _mm512_max_ps(min, _mm512_min_ps(max, load_inputs(row, at)));
    const __m512 rounded = _mm512_cvtph_ps(_mm512_cvtps_ph(in, _MM_FROUND_TO_NEAREST_INT));
    _mm512_mask_storeu_ps(row.out + at * 4, Simd512::mask(row.out_bytes / 4 - at), rounded);
  }
}

TESSERA_INLINE __m512i magnitude_bits(__m512 values) {
  return _mm512_and_si512(_mm512_castps_si512(values), _mm512_set1_epi32(0x7fffffff));
}

// Sets the scale. Returns: the factor for the inputs. Magnitudes have the order of their bits, and
// a NaN is above all of them. It reaches the scale, and so every output.
TESSERA_INLINE float find_scale(__m512i largest, float highest, float& scale) {
  const float magnitude = _mm_cvtss_f32(
      _mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(_mm512_reduce_max_epu32(largest)))));
  const bool vanishes = magnitude < 1e-30f;  // its inverse might not be finite
  scale = vanishes ? 0.0f : magnitude / highest;
  return vanishes ? 0.0f : highest / magnitude;
}

float find_row_scale(const ActivationRow& row, float highest) {
  __m512i largest = _mm512_setzero_si512();
  for (int64_t at = 0; at < row.cols; at += 16) {
    largest = _mm512_max_epu32(largest, magnitude_bits(load_inputs(row, at)));
  }
  return find_scale(largest, highest, *row.scale);
}

TESSERA_INLINE __m512i quantise(__m512 in, __m512 inverse) {
  const __m512 low = _mm512_max_ps(_mm512_mul_ps(in, inverse), _mm512_set1_ps(-127.0f));
  return _mm512_cvtps_epi32(_mm512_min_ps(low, _mm512_set1_ps(127.0f)));
}

// Writes the codes and the scale of a block. Returns: the sum of the codes.
template <int kInputs>
TESSERA_INLINE int32_t convert_block(const ActivationRow& row, int64_t at, std::byte* out,
                                     float& scale) {
  constexpr int kVectors = kInputs / 16;
  __m512 in[kVectors];
  __m512i largest = _mm512_setzero_si512();
#pragma GCC unroll 2
  for (int i = 0; i < kVectors; ++i) {
    in[i] = load_inputs(row, at + 16 * i);
    largest = _mm512_max_epu32(largest, magnitude_bits(in[i]));
  }
  const __m512 inverse = _mm512_set1_ps(find_scale(largest, 127.0f, scale));
  __m512i sum = _mm512_setzero_si512();
#pragma GCC unroll 2
  for (int i = 0; i < kVectors; ++i) {
    const __m512i codes = quantise(in[i], inverse);
    sum = _mm512_add_epi32(sum, codes);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 16 * i), _mm512_cvtepi32_epi8(codes));
  }
  __builtin_memcpy(out + kInputs, &scale, sizeof(scale));
  return _mm512_reduce_add_epi32(sum);
}

template <WeightFormat kFormat>
void convert_blocks(const ActivationRow& row) {
  constexpr WeightEncoding kStored = encoding(kFormat);
  constexpr int kInputs = kStored.block;
  std::byte* out = row.out;
  for (int64_t at = 0; at < row.cols; at += kInputs, out += kInputs + 8) {
    float scale;
    const int32_t sum = convert_block<kInputs>(row, at, out, scale);
    if constexpr (kStored.minimum) {
      const float correction = scale * static_cast<float>(sum);
      __builtin_memcpy(out + kInputs + 4, &correction, sizeof(correction));
    } else {
      const int32_t correction = -kStored.offset * sum;
      __builtin_memcpy(out + kInputs + 4, &correction, sizeof(correction));
    }
  }
}

// Rounds to the nearest E4M3, stored as bf16, i.e. the upper halves of f32.
void convert_fp8(const ActivationRow& row) {
  const __m512 inverse = _mm512_set1_ps(find_row_scale(row, 448.0f));
  const __m512 shift = _mm512_set1_ps(0x1p14f);
  const __m512i sign_bit = _mm512_set1_epi32(static_cast<int32_t>(0x80000000));
  for (int64_t at = 0; at * 2 < row.out_bytes; at += 16) {
    const __m512 in = _mm512_mul_ps(load_inputs(row, at), inverse);
    const __m512 magnitude = _mm512_min_ps(_mm512_abs_ps(in), _mm512_set1_ps(448.0f));
    const __m512i bits = _mm512_castps_si512(magnitude);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 20), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_and_si512(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7ffff))),
                         _mm512_set1_epi32(-0x100000));
    const __m512 subnormal = _mm512_sub_ps(_mm512_add_ps(magnitude, shift), shift);
    const __mmask16 small = _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(0x1p-6f), _CMP_LT_OQ);
    const __m512i value = _mm512_mask_blend_epi32(small, rounded, _mm512_castps_si512(subnormal));
    const __m512i with_sign =
        _mm512_or_si512(value, _mm512_and_si512(_mm512_castps_si512(in), sign_bit));
    store_bytes(row.out + at * 2, _mm512_cvtepi32_epi16(_mm512_srli_epi32(with_sign, 16)),
                row.out_bytes - at * 2);
  }
}

}  // namespace

namespace avx512 {

template <WeightFormat kFormat, int kWideRows>
constexpr FormatKernels kBlocks{convert_blocks<kFormat>, 1, kWide<Simd512, kFormat, kWideRows, 2>,
                                kTall<Simd512, kFormat, 6, 2>};

constinit const LinearKernels kLinearKernels{{
    // in the order of WeightFormat
    {convert_f32, 4, kWide<Simd512, WeightFormat::f32, 6, 4>,
     kTall<Simd512, WeightFormat::f32, 12, 2>},
    {convert_bf16, 2, kWide<Simd512, WeightFormat::bf16, 6, 4>,
     kTall<Simd512, WeightFormat::bf16, 12, 2>},
    {convert_f16, 4, kWide<Simd512, WeightFormat::f16, 6, 4>,
     kTall<Simd512, WeightFormat::f16, 12, 2>},
    kBlocks<WeightFormat::int8, 8>,
    kBlocks<WeightFormat::int4, 6>,
    {convert_fp8, 2, kWide<Simd512, WeightFormat::fp8, 3, 4>,
     kTall<Simd512, WeightFormat::fp8, 8, 2>},
    kBlocks<WeightFormat::int4_symmetric, 6>,
    kBlocks<WeightFormat::int5_symmetric, 6>,
    kBlocks<WeightFormat::int5, 6>,
    kBlocks<WeightFormat::int4_super, 6>,
    kBlocks<WeightFormat::int5_super, 6>,
    kBlocks<WeightFormat::int6_super, 6>,
    kBlocks<group_tile(WeightFormat::int4_group32), 6>,
    kBlocks<group_tile(WeightFormat::int4_group64), 6>,
    kBlocks<group_tile(WeightFormat::int4_group128), 6>,
    kBlocks<group_tile(WeightFormat::int4_row), 6>,
    kBlocks<group_tile(WeightFormat::int4_zero32), 6>,
    kBlocks<group_tile(WeightFormat::int4_zero64), 6>,
    kBlocks<group_tile(WeightFormat::int4_zero128), 6>,
    kBlocks<group_tile(WeightFormat::int4_zero_row), 6>,
    kBlocks<group_tile(WeightFormat::int8_group32), 8>,
    kBlocks<group_tile(WeightFormat::int8_group64), 8>,
    kBlocks<group_tile(WeightFormat::int8_group128), 8>,
    kBlocks<group_tile(WeightFormat::int8_row), 8>,
    {convert_groups<convert_fp8>, 2, kWide<Simd512, WeightFormat::fp8_group128, 2, 4>,
     kTall<Simd512, WeightFormat::fp8_group128, 5, 2>},
}};

}  // namespace avx512
}  // namespace tessera
