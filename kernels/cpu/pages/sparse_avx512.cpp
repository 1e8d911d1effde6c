#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/cpu/pages/page_codec.h"
#include "kernels/cpu/pages/page_ops.h"
#include "kernels/cpu/simd/limits.h"

namespace tessera::avx512 {
namespace {

// Channels are in words of 64, with one mask each. Channels beyond head_dim read as 0.
constexpr int kWordChannels = 64;
constexpr int kVectorChannels = 32;
constexpr int kMaxWords = kMaxHeadDim / kWordChannels;

// The kept channels of a token, contiguous. A vector store may write beyond the last one.
struct KeptChannels {
  alignas(64) f16 halves[kMaxHeadDim + kVectorChannels] = {};
  alignas(64) int8_t codes[kMaxHeadDim] = {};
};

__m512i load_halves(const f16* p, int64_t valid) {
  const auto within = std::clamp<int64_t>(valid, 0, kVectorChannels);
  const auto mask = static_cast<__mmask32>((uint64_t{1} << within) - 1);
  return _mm512_maskz_loadu_epi16(mask, p);
}

// The bits of a finite f16 without the sign have the order of the magnitudes. So the magnitude of
// rank `kept` is found bit by bit, from the highest.
template <int kWords>
class Magnitudes {
 public:
  Magnitudes(const f16* channels, int32_t head_dim) {
    for (int i = 0; i < 2 * kWords; ++i) {
      bits_[i] = _mm512_and_si512(
          load_halves(channels + i * kVectorChannels, head_dim - i * kVectorChannels),
          _mm512_set1_epi16(0x7fff));
    }
  }

  uint16_t of_rank(int32_t rank) const {
    uint16_t found = 0;
    for (uint16_t bit = 1 << 14; bit > 0; bit = static_cast<uint16_t>(bit >> 1)) {
      const auto tried = static_cast<uint16_t>(found | bit);
      found = above(static_cast<uint16_t>(tried - 1)).count() >= rank ? tried : found;
    }
    return found;
  }

  struct Channels {
    uint64_t words[kWords];
    int32_t count() const {
      int32_t all = 0;
      for (const uint64_t word : words) {
        all += __builtin_popcountll(word);
      }
      return all;
    }
  };
  // Channels with a magnitude above `min`.
  Channels above(uint16_t min) const { return where<_MM_CMPINT_NLE>(min); }
  Channels equal_to(uint16_t magnitude) const { return where<_MM_CMPINT_EQ>(magnitude); }
  uint16_t largest() const {
    __m512i max = bits_[0];
    for (int i = 1; i < 2 * kWords; ++i) {
      max = _mm512_max_epu16(max, bits_[i]);
    }
    const __m256i half =
        _mm256_max_epu16(_mm512_castsi512_si256(max), _mm512_extracti64x4_epi64(max, 1));
    __m128i eight = _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    // The instruction finds the smallest, so the bits are inverted.
    eight = _mm_minpos_epu16(_mm_xor_si128(eight, _mm_set1_epi16(-1)));
    return static_cast<uint16_t>(~_mm_extract_epi16(eight, 0));
  }

 private:
  template <int kComparison>
  Channels where(uint16_t magnitude) const {
    const __m512i bound = _mm512_set1_epi16(static_cast<int16_t>(magnitude));
    Channels found;
    for (int i = 0; i < kWords; ++i) {
      const __mmask32 low = _mm512_cmp_epu16_mask(bits_[2 * i], bound, kComparison);
      const __mmask32 high = _mm512_cmp_epu16_mask(bits_[2 * i + 1], bound, kComparison);
      found.words[i] = uint64_t{high} << 32 | low;
    }
    return found;
  }

  __m512i bits_[2 * kWords];
};

// Returns: the lowest `count` of `channels`, or all if they are fewer.
uint64_t lowest(uint64_t channels, int32_t count) {
  for (int32_t left = __builtin_popcountll(channels); left > count; --left) {
    channels &= ~(uint64_t{1} << (63 - __builtin_clzll(channels)));
  }
  return channels;
}

// Selects the kept channels, as choose() of sparse_codec.cpp does.
template <int kWords>
void choose(const Magnitudes<kWords>& magnitudes, int32_t count, uint64_t* kept) {
  const uint16_t min = magnitudes.of_rank(count);
  const auto above = magnitudes.above(min);
  const auto ties = magnitudes.equal_to(min);
  int32_t left = count - above.count();
  for (int i = 0; i < kWords; ++i) {
    const uint64_t chosen = lowest(ties.words[i], left);
    left -= __builtin_popcountll(chosen);
    kept[i] = above.words[i] | chosen;
  }
}

void compress(const SparseSide& side, const f16* channels, const uint64_t* kept,
              KeptChannels& out) {
  f16* to = out.halves;
  for (int i = 0; i * kVectorChannels < side.head_dim; ++i) {
    const auto mask = static_cast<__mmask32>(kept[i / 2] >> i % 2 * kVectorChannels);
    const __m512i all =
        load_halves(channels + i * kVectorChannels, side.head_dim - i * kVectorChannels);
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi16(mask, all));
    to += __builtin_popcount(mask);
  }
}

// Computes the codes of out.halves, and packs two of them in a byte.
void quantise(const SparseSide& side, float scale, KeptChannels& out) {
  const auto last = largest_sparse_code(side.bits);
  const __mmask16 positive = scale > 0 ? 0xffff : 0;
  for (int i = 0; i < side.kept; i += 16) {
    const __m512 x =
        _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(out.halves + i)));
    const __m512i nearest =
        _mm512_maskz_cvt_roundps_epi32(positive, _mm512_div_ps(x, _mm512_set1_ps(scale)),
                                       _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512i code = _mm512_max_epi32(_mm512_min_epi32(nearest, _mm512_set1_epi32(last)),
                                          _mm512_set1_epi32(-last));
    _mm_store_si128(reinterpret_cast<__m128i*>(out.codes + i), _mm512_cvtepi32_epi8(code));
  }
  for (int i = 0; i < side.kept; i += 2 * kVectorChannels) {
    const __m512i pairs = _mm512_load_si512(out.codes + i);
    const __m512i first = _mm512_and_si512(pairs, _mm512_set1_epi16(0x0f));
    const __m512i second = _mm512_and_si512(_mm512_srli_epi16(pairs, 4), _mm512_set1_epi16(0xf0));
    _mm256_store_si256(reinterpret_cast<__m256i*>(out.codes + i / 2),
                       _mm512_cvtepi16_epi8(_mm512_or_si512(first, second)));
  }
}

template <int kWords>
void encode(const SparseSide& side, const f16* channels, int32_t lane, std::byte* side_bytes,
            f16* scales) {
  const Magnitudes<kWords> magnitudes(channels, side.head_dim);
  uint64_t kept[kWords];
  choose(magnitudes, side.kept, kept);
  std::memcpy(side_bytes + side.bitmap_offset(lane), kept, static_cast<size_t>(side.bitmap_bytes));
  KeptChannels out;
  compress(side, channels, kept, out);
  const void* bytes = out.halves;
  if (side.is_codes()) {
    const auto last = static_cast<float>(largest_sparse_code(side.bits));
    scales[lane] = to_stored_f16(to_f32(std::bit_cast<f16>(magnitudes.largest())) / last);
    quantise(side, to_f32(scales[lane]), out);
    bytes = out.codes;
  }
  std::memcpy(side_bytes + side.kept_offset(lane), bytes, static_cast<size_t>(side.kept_bytes));
}

}  // namespace

void encode_sparse(const SparseSide& side, const f16* channels, int32_t lane, std::byte* side_bytes,
                   f16* scales) {
  constexpr decltype(&encode<1>) kEncode[kMaxWords] = {encode<1>, encode<2>, encode<3>, encode<4>};
  kEncode[(side.head_dim - 1) / kWordChannels](side, channels, lane, side_bytes, scales);
}

}  // namespace tessera::avx512
