#pragma once

#include "kernels/kv_page.h"

namespace tessera {

// What an instruction set brings to kv_store; the loops over groups, tiles and heads, and the
// sharing among threads, are written once, in kv_store.cpp.
struct PageOps {
  // Writes one token's keys and values [head_dim] into a page of the window's layout.
  void (*put_token)(const KvPageLayout& window, const float* keys, const float* values,
                    std::byte* page, int32_t token);
  // Encodes tile `from_tile` of a page of the window's layout as tile `to_tile` of a page of codes.
  void (*encode_tile)(const KvPageLayout& window, const std::byte* from, int64_t from_tile,
                      const KvPageLayout& codes, std::byte* to, int64_t to_tile);
};

namespace scalar {
extern const PageOps kPageOps;
}
namespace avx2 {
extern const PageOps kPageOps;
}
namespace avx512 {
extern const PageOps kPageOps;
}

}  // namespace tessera
