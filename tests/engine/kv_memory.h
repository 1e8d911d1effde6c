#pragma once

#include <cstdint>

#include "engine/kv/kv_cache.h"
#include "kernels/cpu/backend.h"

namespace tessera {

// KV memory in which each (layer, KV head) has `row_pages` pages, beside windows and tables.
// Requires: enough for one context.
inline int64_t kv_memory(KvCacheOptions options, int64_t row_pages) {
  options.bytes = 0;
  const auto kv = KvCache::create(options, cpu_backend(CpuIsa::scalar), {});
  KvArenaShape shape = (*kv)->shape();
  shape.pages = static_cast<int32_t>(row_pages * shape.slot_rows());
  return shape.total_bytes();
}

}  // namespace tessera
