#pragma once

#include <cstdint>

#include "kernels/kv_page.h"

namespace tessera {

inline constexpr int32_t kNoPage = -1;

struct KvFreeRange {
  int64_t head = 0;   // place of the first free id in the circular list
  int64_t count = 0;  // free ids
};

// The page tables and the free pages, as the backend's memory holds them. Only the op kv_resize
// changes them. Invariant, after every op: each page id in [0, pages) stands exactly once, either
// in a table or in the free list's live range.
struct KvPool {
  int32_t* tables = nullptr;  // [slots, layers, kv_heads, row_pages] page ids, kNoPage: none
  int32_t slots = 0;
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t row_pages = 0;

  // Circular: the free ids are free_list[(head + i) % pages] for i in [0, count).
  int32_t* free_list = nullptr;  // [pages]
  int32_t pages = 0;
  KvFreeRange* free_range = nullptr;  // one, beside the list, so that a device can own it
};

// One slot's change: each of its layers * kv_heads rows goes from `pages_before` to `pages_after`.
struct KvRowResize {
  int32_t slot = 0;
  int32_t pages_before = 0;
  int32_t pages_after = 0;
};

}  // namespace tessera
