#include "kernels/cpu/simd/code_lanes_avx512.h"
#include "kernels/cpu/simd/compiler.h"
#include "kernels/cpu/simd/lanes_avx512.h"
#include "kernels/cpu/simd/sparse_lanes_avx512.h"
#include "kernels/cpu/tiles/bound_dots.h"
#include "kernels/cpu/tiles/code_attention.h"
#include "kernels/cpu/tiles/lane_attention.h"
#include "kernels/cpu/tiles/sparse_attention.h"
#include "kernels/kv/rotation_levels.h"
#ifdef TESSERA_COMPILES_FP16
#include "kernels/cpu/tiles/sparse_halves_avx512.h"
#endif

namespace tessera::avx512 {
namespace {

using Floats = LaneAttention<Lanes>;
using Codes = CodeAttention<CodeLanes>;
using Softmax = LaneSoftmax<Lanes>;

struct DotLanes {
  static constexpr int32_t kCodes = 32;
  static __m512i no_sums() { return _mm512_setzero_si512(); }
  static __m512i add_products(__m512i sums, const uint8_t* codes, const int16_t* factors,
                              int32_t left) {
    const __mmask32 valid = left >= kCodes ? ~__mmask32{0} : __mmask32{0xffff};
    const __m512i words = _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(valid, codes));
    return _mm512_add_epi32(sums,
                            _mm512_madd_epi16(words, _mm512_maskz_loadu_epi16(valid, factors)));
  }
  static int32_t total(__m512i sums) { return _mm512_reduce_add_epi32(sums); }
};

template <class Sparse>
constexpr AttentionKernels kernels_of() {
  using Tiles = TileAttention<Floats, Codes, Sparse>;
  return {Floats::load_query,
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
}

}  // namespace

const AttentionKernels kAttentionKernels = kernels_of<SparseAttention<SparseLanes>>();
#ifdef TESSERA_COMPILES_FP16
const AttentionKernels kFp16AttentionKernels = kernels_of<SparseHalves>();
#else
const AttentionKernels kFp16AttentionKernels = kAttentionKernels;  // best_isa() never selects it
#endif

}  // namespace tessera::avx512
