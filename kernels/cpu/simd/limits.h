#pragma once

#include <cstdint>

#include "base/check.h"
#include "kernels/kv/kv_page.h"

namespace tessera {

// Maximum head_dim of the CPU backend. Work areas of one head are on a thread's stack.
inline constexpr int32_t kMaxHeadDim = 256;
// head_dim must be a multiple of this in the SIMD attention: one vector of AVX2, half a vector of
// AVX-512.
inline constexpr int32_t kHeadDimMultiple = 8;

inline void check_layout(const KvPageLayout& layout) {
  TESSERA_CHECK(layout.head_dim > 0 && layout.head_dim <= kMaxHeadDim,
                "the CPU backend serves head dimensions up to 256");
  TESSERA_CHECK(is_supported(layout.format), "a page format without a kernel");
  TESSERA_CHECK(layout.capacity > 0, "a page that holds no token");
}

}  // namespace tessera
