#include "kernels/cpu/recurrence/lane_delta.h"
#include "kernels/cpu/simd/lanes_avx512.h"

namespace tessera::avx512 {

void take_delta_step(const DeltaStep& step) {
  LaneDelta<Lanes>::take_step(step);
}

}  // namespace tessera::avx512
