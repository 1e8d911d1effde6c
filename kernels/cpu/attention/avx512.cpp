#include "kernels/cpu/attention/lane_attention.h"
#include "kernels/cpu/attention/lane_rows.h"
#include "kernels/cpu/attention/lanes_avx512.h"
#include "kernels/cpu/attention/row_ops.h"

namespace tessera::avx512 {

const RowOps kRowOps{LaneRows<Lanes>::rms_norm, LaneRows<Lanes>::rope, LaneRows<Lanes>::silu_mul,
                     LaneRows<Lanes>::to_f16};
const AttentionKernels kAttentionKernels = LaneAttention<Lanes>::kKernels;

}  // namespace tessera::avx512
