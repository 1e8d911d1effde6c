#include "kernels/cpu/rows/lane_rows.h"
#include "kernels/cpu/rows/row_ops.h"
#include "kernels/cpu/simd/lanes_avx512.h"

namespace tessera::avx512 {

const RowOps kRowOps{LaneRows<Lanes>::rms_norm, LaneRows<Lanes>::rope, LaneRows<Lanes>::silu_mul};

}  // namespace tessera::avx512
