#pragma once

#include <cstdint>

#include "kernels/kv/allocators/reads.h"

namespace tessera {

// KV-Compress, section 4.2.2: evicts whole pages over all rows together, until the remaining pages
// fit the budget. The next page of a row holds its worst tokens, as many as free its last page. The
// page whose best token is the worst is evicted first.
//
// The ranking needs all rows at once, so each backend has its own code:
// kernels/cpu/compress/page_ranks.cpp and kernels/cuda/compress/allocators.cu.
struct PagesAllocator {
  static constexpr AllocatorReads kReads = AllocatorReads::pages;
};

}  // namespace tessera
