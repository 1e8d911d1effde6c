#pragma once

#include <cstdint>

#include "kernels/kv/kv_page.h"

namespace tessera {

// Units in which the costs of ops are counted (bench/op_cost.h).

inline constexpr int64_t kId = sizeof(int32_t);  // bytes of a token id, a position or a page id

constexpr int64_t heads_of(const KvPagesView& pages) {  // KV heads of all layers
  return int64_t{pages.layers} * pages.kv_heads;
}

}  // namespace tessera
