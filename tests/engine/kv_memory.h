#pragma once

#include <cstdint>

#include "engine/kv/kv_cache.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads/thread_pool.h"

namespace tessera {

// Returns: bytes of KV memory that give each (layer, KV head) `row_pages` pages, with residual
// buffers and tables.
// Requires: enough pages for one context.
inline int64_t kv_memory(KvCacheOptions options, int64_t row_pages) {
  options.bytes = 0;
  ThreadPool threads(1);
  const auto kv = KvCache::create(options, cpu_backend(CpuIsa::scalar), threads.stream());
  KvArenaShape shape = (*kv)->shape();
  shape.pages = static_cast<int32_t>(row_pages * shape.slot_rows());
  return shape.total_bytes();
}

// Returns: pages of each (layer, KV head) that one context needs.
inline int64_t context_row_pages(KvCacheOptions options) {
  options.bytes = 0;
  ThreadPool threads(1);
  const auto kv = KvCache::create(options, cpu_backend(CpuIsa::scalar), threads.stream());
  return div_ceil((*kv)->accounting().pages_total(), (*kv)->shape().rows());
}

}  // namespace tessera
