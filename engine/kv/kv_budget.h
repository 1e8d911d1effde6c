#pragma once

#include <cstdint>

#include "kernels/kv_page.h"

namespace tessera {

// What planning may know of the KV cache: totals. Which pages a sequence has is the backend's.
//
// Only whole groups lie in pages; a sequence's open group is in its window, which its slot has from
// the start. So a sequence needs pages when a group closes, and only then.
struct KvBudget {
  int64_t pages_free = 0;
  int32_t heads = 0;        // layers * kv_heads; each has a row of pages of its own
  int32_t page_tokens = 0;  // tokens of one page

  // Pages that the closed groups of `tokens` tokens of one sequence occupy, over all heads.
  constexpr int64_t pages_for(int64_t tokens) const {
    return heads * div_ceil(tokens / kKvGroup * kKvGroup, page_tokens);
  }

  // Those of them that are full: sequences that begin alike may share these.
  constexpr int64_t full_pages(int64_t tokens) const {
    return heads * (tokens / kKvGroup * kKvGroup / page_tokens);
  }

  // The most tokens that a sequence can have whose rows hold `row_pages` pages each: as many whole
  // groups as fit, and an open one.
  constexpr int64_t tokens_within(int64_t row_pages) const {
    return row_pages * page_tokens / kKvGroup * kKvGroup + kKvGroup - 1;
  }
};

}  // namespace tessera
