#include "kernels/cpu/simd/code_lanes_avx2.h"
#include "kernels/cpu/simd/lanes_avx2.h"
#include "kernels/cpu/simd/sparse_lanes_avx2.h"
#include "kernels/cpu/tiles/bound_dots.h"
#include "kernels/cpu/tiles/code_attention.h"
#include "kernels/cpu/tiles/lane_attention.h"
#include "kernels/cpu/tiles/sparse_attention.h"
#include "kernels/kv/rotation_levels.h"

namespace tessera::avx2 {
namespace {

using Floats = LaneAttention<Lanes>;
using Codes = CodeAttention<CodeLanes>;
using Sparse = SparseAttention<SparseLanes>;
using Softmax = LaneSoftmax<Lanes>;
using Tiles = TileAttention<Floats, Codes, Sparse>;

struct DotLanes {
  static constexpr int32_t kCodes = 16;
  static __m256i no_sums() { return _mm256_setzero_si256(); }
  static __m256i add_products(__m256i sums, const uint8_t* codes, const int16_t* factors, int32_t) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(factors));
    return _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_cvtepu8_epi16(bytes), words));
  }
  static int32_t total(__m256i sums) {
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    return _mm_cvtsi128_si32(four);
  }
};

}  // namespace

const AttentionKernels kAttentionKernels{Floats::load_query,
                                         Codes::load_query_codes,
                                         Sparse::load_query_tokens,
                                         Tiles::add_tile,
                                         Tiles::weigh_tile,
                                         Softmax::add_attention<false>,
                                         Softmax::add_attention<true>,
                                         Softmax::finish,
                                         Softmax::merge,
                                         Softmax::normalise,
                                         RotationLevels<Lanes>::rotate,
                                         BoundDots<DotLanes>::multiply};

}  // namespace tessera::avx2
