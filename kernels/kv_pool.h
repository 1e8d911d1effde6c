#pragma once

#include <cstdint>

#include "kernels/kv_page.h"

namespace tessera {

inline constexpr int32_t kNoPage = -1;

struct KvFreeRange {
  int64_t head = 0;   // place of the first free id in the circular list
  int64_t count = 0;  // free ids
};

// The page tables and the free pages, as the backend's memory holds them. Only the ops kv_resize
// and kv_fork change them. Invariant, after every op: each page id in [0, pages) stands in as many
// table entries as it has owners, and in the free list's live range, once, if it has none.
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
  int32_t* owners = nullptr;          // [pages] table entries that hold the page
};

// One slot's change: each of its layers * kv_heads rows goes from `pages_before` to `pages_after`.
struct KvRowResize {
  int32_t slot = 0;
  int32_t pages_before = 0;
  int32_t pages_after = 0;
};

// One slot becomes a copy of another's beginning: the first `tokens` tokens of `source` in every
// row.
struct KvRowFork {
  int32_t source = 0;
  int32_t target = 0;  // holds nothing yet
  int32_t tokens = 0;  // that `source` has stored
};

}  // namespace tessera
