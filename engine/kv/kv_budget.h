#pragma once

#include <cstdint>

#include "kernels/view.h"

namespace tessera {

// What planning may know of the KV cache: totals. Which pages a sequence has is the backend's.
struct KvBudget {
  int64_t pages_free = 0;
  int32_t heads = 0;        // layers * kv_heads; each has a row of pages of its own
  int32_t page_tokens = 0;  // tokens of one page

  // Pages that `tokens` tokens of one sequence occupy, over all heads.
  constexpr int64_t pages_for(int64_t tokens) const {
    return heads * div_ceil(tokens, page_tokens);
  }
  // Those of them that the tokens fill: sequences that begin alike may share these.
  constexpr int64_t full_pages(int64_t tokens) const { return heads * (tokens / page_tokens); }
};

}  // namespace tessera
