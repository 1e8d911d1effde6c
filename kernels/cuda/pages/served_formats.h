#pragma once

#include "kernels/kv/kv_format.h"

namespace tessera::cuda {

// Returns: true if kernels read and write pages of the format. Rotated formats and fp8 are refused,
// and with the first all codes of 3 bits.
constexpr bool serves_format(KvFormat format) {
  return is_supported(format) && !format.rotated && !format.e4m3;
}

}  // namespace tessera::cuda
