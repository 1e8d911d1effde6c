#include "kernels/cpu/simd/code_lanes_avx512.h"
#include "kernels/cpu/simd/compiler.h"
#include "kernels/cpu/simd/lanes_avx512.h"
#include "kernels/cpu/simd/sparse_lanes_avx512.h"
#include "kernels/cpu/tiles/code_attention.h"
#include "kernels/cpu/tiles/lane_attention.h"
#include "kernels/cpu/tiles/sketch_avx2.h"
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

using Sketch = Avx2Sketch<Lanes>;

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
          Sketch::add};
}

}  // namespace

const AttentionKernels kAttentionKernels = kernels_of<SparseAttention<SparseLanes>>();
#ifdef TESSERA_COMPILES_FP16
const AttentionKernels kFp16AttentionKernels = kernels_of<SparseHalves>();
#else
const AttentionKernels kFp16AttentionKernels = kAttentionKernels;  // best_isa() never selects it
#endif

}  // namespace tessera::avx512
