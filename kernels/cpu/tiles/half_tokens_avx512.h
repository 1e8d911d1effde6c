#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/simd/sparse_lanes_avx512.h"
#include "kernels/cpu/tiles/sparse_attention.h"

// Only functions with these attributes are compiled for AVX512-FP16. No other function that leaves
// a file then contains FP16 instructions.
#define TESSERA_FP16 [[gnu::target("avx512fp16")]]
#define TESSERA_FP16_INLINE [[gnu::target("avx512fp16"), gnu::always_inline]]

namespace tessera::avx512 {

// Views of sparse tokens and constants shared by the kernels of sparse_halves_avx512.h.
// Requires: the tokens are from SparseAttention::pack(), so that whole vectors can be read.
struct HalfTokens {
  using Sparse = SparseAttention<SparseLanes>;
  using Packed = Sparse::Packed;
  static constexpr int kLanes = Lanes::kLanes;
  static constexpr int kKeyTile = KvPageLayout::kKeyTile;
  static constexpr int kTokens = 8;                 // tokens of keys in a pass
  static constexpr int kWord = 64;                  // channels in a bitmap word
  static constexpr int64_t kWordBytes = 2 * kWord;  // bytes of their f16
  static constexpr int kWords = kMaxHeadDim / kWord;

  // Cursor over the tokens of one key tile, in the order of the page. Not owned.
  struct Tokens {
    const std::byte* kept;
    const std::byte* bitmap;
    int64_t kept_bytes;
    int64_t bitmap_bytes;

    void next() {
      kept += kept_bytes;
      bitmap += bitmap_bytes;
    }
  };
  static Tokens tokens_from(const Packed& packed, int token) {
    const int tile = token / kKeyTile;
    const int lane = token % kKeyTile;
    return {packed.kept[tile] + lane * packed.kept_bytes,
            packed.bitmaps[tile] + lane * packed.bitmap_bytes, packed.kept_bytes,
            packed.bitmap_bytes};
  }

  // Loads 64 channels of a token as f16. Kept f16 (codes) go to the channels that are set in the
  // bitmap word `bits`, the others become 0.
  template <class T>
  TESSERA_FP16_INLINE static void load_word(const std::byte* kept, uint64_t bits, __m512h& first,
                                            __m512h& second) {
    if constexpr (sizeof(T) == 1) {
      const __m512i codes = _mm512_maskz_expand_epi8(bits, _mm512_loadu_si512(kept));
      first = _mm512_cvtepi16_ph(_mm512_cvtepi8_epi16(_mm512_castsi512_si256(codes)));
      second = _mm512_cvtepi16_ph(_mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(codes, 1)));
    } else {
      const auto low = static_cast<uint32_t>(bits);
      const auto high = static_cast<uint32_t>(bits >> 32);
      const std::byte* rest = kept + 2 * __builtin_popcount(low);
      first = _mm512_castsi512_ph(_mm512_maskz_expand_epi16(low, _mm512_loadu_si512(kept)));
      second = _mm512_castsi512_ph(_mm512_maskz_expand_epi16(high, _mm512_loadu_si512(rest)));
    }
  }
};

}  // namespace tessera::avx512
