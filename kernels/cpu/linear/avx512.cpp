#include "kernels/cpu/linear/simd_avx512.h"
#include "kernels/half.h"

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

// Sets the scale. Returns: the factor for the inputs. Magnitudes have the order of their bits, and
// a NaN is above all of them. It reaches the scale, and so every output.
float find_scale(const ActivationRow& row, float highest) {
  const __m512i magnitude_bits = _mm512_set1_epi32(0x7fffffff);
  __m512i largest = _mm512_setzero_si512();
  for (int64_t at = 0; at < row.cols; at += 16) {
    const __m512i in = _mm512_castps_si512(load_inputs(row, at));
    largest = _mm512_max_epu32(largest, _mm512_and_si512(in, magnitude_bits));
  }
  const float magnitude = _mm_cvtss_f32(
      _mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(_mm512_reduce_max_epu32(largest)))));
  const bool vanishes = magnitude < 1e-30f;  // its inverse might not be finite
  *row.scale = vanishes ? 0.0f : magnitude / highest;
  return vanishes ? 0.0f : highest / magnitude;
}

TESSERA_INLINE __m512i quantise(const ActivationRow& row, int64_t at, __m512 inverse) {
  const __m512 in = _mm512_mul_ps(load_inputs(row, at), inverse);
  const __m512 low = _mm512_max_ps(in, _mm512_set1_ps(-127.0f));
  return _mm512_cvtps_epi32(_mm512_min_ps(low, _mm512_set1_ps(127.0f)));
}

// Returns: thirty-two codes from `at` on, as bytes. Adds them to `sum`.
TESSERA_INLINE __m256i quantise_bytes(const ActivationRow& row, int64_t at, __m512 inverse,
                                      __m512i& sum) {
  const __m512i first = quantise(row, at, inverse);
  const __m512i second = quantise(row, at + 16, inverse);
  sum = _mm512_add_epi32(sum, _mm512_add_epi32(first, second));
  return _mm256_set_m128i(_mm512_cvtepi32_epi8(second), _mm512_cvtepi32_epi8(first));
}

void convert_int8(const ActivationRow& row) {
  const __m512 inverse = _mm512_set1_ps(find_scale(row, 127.0f));
  __m512i sum = _mm512_setzero_si512();
  for (int64_t at = 0; at < row.out_bytes; at += 32) {
    store_bytes(row.out + at, quantise_bytes(row, at, inverse, sum), row.out_bytes - at);
  }
  *row.corrections = -128 * _mm512_reduce_add_epi32(sum);
}

void convert_int4(const ActivationRow& row) {
  const __m512 inverse = _mm512_set1_ps(find_scale(row, 127.0f));
  for (int64_t at = 0; at < row.out_bytes; at += 32) {
    __m512i sum = _mm512_setzero_si512();
    store_bytes(row.out + at, quantise_bytes(row, at, inverse, sum), 32);
    row.corrections[at / 32] = -8 * _mm512_reduce_add_epi32(sum);
  }
}

// Rounds to the nearest E4M3, stored as bf16, i.e. the upper halves of f32.
void convert_fp8(const ActivationRow& row) {
  const __m512 inverse = _mm512_set1_ps(find_scale(row, 448.0f));
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

constinit const LinearKernels linear_kernels{{
    {convert_f32, kWide<Simd512, Element::f32, 6, 4>, kTall<Simd512, Element::f32, 12, 2>},
    {convert_bf16, kWide<Simd512, Element::bf16, 6, 4>, kTall<Simd512, Element::bf16, 12, 2>},
    {convert_f16, kWide<Simd512, Element::f16, 6, 4>, kTall<Simd512, Element::f16, 12, 2>},
    {convert_int8, kWide<Simd512, Element::int8, 6, 4>, kTall<Simd512, Element::int8, 12, 2>},
    {convert_int4, kWide<Simd512, Element::int4, 1, 4>, kTall<Simd512, Element::int4, 6, 2>},
    {convert_fp8, kWide<Simd512, Element::fp8, 3, 4>, kTall<Simd512, Element::fp8, 8, 2>},
}};

}  // namespace avx512
}  // namespace tessera
