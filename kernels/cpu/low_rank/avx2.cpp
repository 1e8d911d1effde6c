#include "kernels/cpu/low_rank/lane_tiles.h"
#include "kernels/cpu/simd/lanes_avx2.h"

namespace tessera::avx2 {
namespace {

struct Blocks {
  using V = Lanes;
  static constexpr int kRows = 1;  // of 16 registers, the sums of two rows would leave none

  template <bool kIsBf16>
  static void load(const std::byte* block, V (&numbers)[4]) {
    if constexpr (kIsBf16) {
      const __m256i high = _mm256_set1_epi32(-65536);
      for (int i = 0; i < 2; ++i) {
        const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + 32 * i));
        numbers[i] = {_mm256_castsi256_ps(_mm256_slli_epi32(words, 16))};
        numbers[i + 2] = {_mm256_castsi256_ps(_mm256_and_si256(words, high))};
      }
    } else {
      for (int i = 0; i < 4; ++i) {
        numbers[i] = V::load(reinterpret_cast<const float*>(block) + 8 * i);
      }
    }
  }
};

}  // namespace

const LowRankTiles kLowRankTiles{
    {LaneTiles<Blocks, false>::down, LaneTiles<Blocks, true>::down},
    {LaneTiles<Blocks, false>::up, LaneTiles<Blocks, true>::up},
};

}  // namespace tessera::avx2
