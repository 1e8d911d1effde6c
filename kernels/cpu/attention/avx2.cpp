#include "kernels/cpu/simd/code_lanes_avx2.h"
#include "kernels/cpu/simd/lanes_avx2.h"
#include "kernels/cpu/simd/sparse_lanes_avx2.h"
#include "kernels/cpu/tiles/code_attention.h"
#include "kernels/cpu/tiles/lane_attention.h"
#include "kernels/cpu/tiles/sketch_avx2.h"
#include "kernels/cpu/tiles/sparse_attention.h"
#include "kernels/kv/rotation_levels.h"

namespace tessera::avx2 {
namespace {

using Floats = LaneAttention<Lanes>;
using Codes = CodeAttention<CodeLanes>;
using Sparse = SparseAttention<SparseLanes>;
using Softmax = LaneSoftmax<Lanes>;
using Tiles = TileAttention<Floats, Codes, Sparse>;

using Sketch = Avx2Sketch<Lanes>;

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
                                         Sketch::add};

}  // namespace tessera::avx2
