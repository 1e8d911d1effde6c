#pragma once

#include "kernels/cuda/simt/block.h"
#include "kernels/kv/kv_page.h"

namespace tessera::cuda {

// Same as the quantiser of kernels/cpu/pages/page_codec.h, operation by operation, so that both
// backends write the same bytes.
TESSERA_DEVICE f16 to_stored_f16(float value) {
  return simt::as_f16(value < kLargestF16 ? (value > -kLargestF16 ? value : -kLargestF16)
                                          : kLargestF16);
}

struct CodeRange {
  f16 scale;
  f16 zero;
};
TESSERA_DEVICE CodeRange code_range(float lowest, float highest, int32_t bits) {
  const f16 zero = to_stored_f16(lowest + 0.0f);  // turns -0 into +0
  const float step = (highest - simt::as_f32(zero)) / static_cast<float>((1 << bits) - 1);
  return {to_stored_f16(step > 0 ? step : 0.0f), zero};
}

TESSERA_DEVICE uint32_t code_of(float x, CodeRange range, int32_t bits) {
  const float scale = simt::as_f32(range.scale);
  if (!(scale > 0)) {
    return 0;
  }
  const float code = (x - simt::as_f32(range.zero)) / scale;
  const float last = static_cast<float>((1 << bits) - 1);
  return static_cast<uint32_t>(simt::round(simt::min(simt::max(code, 0.0f), last)));
}

}  // namespace tessera::cuda
