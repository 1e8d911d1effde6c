#include "kernels/cpu/low_rank/lane_tiles.h"
#include "kernels/cpu/simd/lanes_avx512.h"

namespace tessera::avx512 {
namespace {

struct Blocks {
  using V = Lanes;
  static constexpr int kRows = 4;

  template <bool kIsBf16>
  static void load(const std::byte* block, V (&numbers)[2]) {
    if constexpr (kIsBf16) {
      const __m512i words = _mm512_loadu_si512(block);
      numbers[0] = {_mm512_castsi512_ps(_mm512_slli_epi32(words, 16))};
      numbers[1] = {_mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(-65536)))};
    } else {
      numbers[0] = V::load(reinterpret_cast<const float*>(block));
      numbers[1] = V::load(reinterpret_cast<const float*>(block) + 16);
    }
  }
};

}  // namespace

const LowRankTiles kLowRankTiles{
    {LaneTiles<Blocks, false>::down, LaneTiles<Blocks, true>::down},
    {LaneTiles<Blocks, false>::up, LaneTiles<Blocks, true>::up},
};

}  // namespace tessera::avx512
