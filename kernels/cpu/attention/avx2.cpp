#include "kernels/cpu/attention/code_attention.h"
#include "kernels/cpu/attention/code_lanes_avx2.h"
#include "kernels/cpu/attention/lane_attention.h"
#include "kernels/cpu/attention/lane_rows.h"
#include "kernels/cpu/attention/lanes_avx2.h"
#include "kernels/cpu/attention/row_ops.h"
#include "kernels/cpu/attention/sparse_attention.h"
#include "kernels/cpu/attention/sparse_lanes_avx2.h"

namespace tessera::avx2 {
namespace {

using Floats = LaneAttention<Lanes>;
using Codes = CodeAttention<CodeLanes>;
using Sparse = SparseAttention<SparseLanes>;
using Softmax = LaneSoftmax<Lanes>;
using Tiles = TileAttention<Floats, Codes, Sparse>;

}  // namespace

const RowOps kRowOps{LaneRows<Lanes>::rms_norm, LaneRows<Lanes>::rope, LaneRows<Lanes>::silu_mul};
const AttentionKernels kAttentionKernels{Floats::load_query,
                                         Codes::load_query_codes,
                                         Sparse::load_query_tokens,
                                         Tiles::add_tile,
                                         Tiles::weigh_tile,
                                         Softmax::add_attention<false>,
                                         Softmax::add_attention<true>,
                                         Softmax::finish,
                                         Softmax::merge,
                                         Softmax::normalise};

}  // namespace tessera::avx2
