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
  int32_t page_tokens = 0;  // tokens of one page of the default's high tier

  // Pages that the closed groups of `tokens` tokens of one sequence occupy, over all heads, as long
  // as no policy compresses them.
  constexpr int64_t pages_for(int64_t tokens) const {
    return heads * div_ceil(tokens / kKvGroup * kKvGroup, page_tokens);
  }
};

// What one sequence's further tokens will take, at most: its rows as planning sees them.
struct KvDemand {
  int32_t heads = 0;
  int32_t page_tokens = 0;  // tokens of one page of its high tier, in which groups close
  // Whether a policy has compressed it: rows hold different numbers of tokens then, and planning
  // knows but a bound of what they need for their next groups.
  bool uneven = false;
  int32_t low_tokens = 0;     // of a beginning that stands in the low tier: closed groups
  int64_t swap_in_pages = 0;  // pages that it takes with its slot, having been saved to host memory
  // Compression may need a page for each row before it frees any (kernels/backend.h): in a step
  // that ends behind the prompt and in which the prompt ends or a group closes.
  bool compresses = false;
  int32_t prompt_tokens = 0;

  // Pages of the high tier that the closed groups of `tokens` tokens occupy, as long as no policy
  // compresses them.
  constexpr int64_t pages_for(int64_t tokens) const {
    return heads * div_ceil(high_tokens(tokens), page_tokens);
  }

  // Those of them that are full: sequences that begin alike may share these.
  constexpr int64_t full_pages(int64_t tokens) const {
    return heads * (high_tokens(tokens) / page_tokens);
  }

  // Of so many tokens those of closed groups of the high tier.
  constexpr int64_t high_tokens(int64_t tokens) const {
    const int64_t closed = tokens / kKvGroup * kKvGroup;
    return closed > low_tokens ? closed - low_tokens : 0;
  }

  // Pages for the next `count` tokens beyond `stored`. Of more than one step: what is left of it
  // after the first ones may be less, because compression frees some.
  constexpr int64_t growth(int32_t stored, int32_t count) const {
    const int32_t closing = (stored + count) / kKvGroup - stored / kKvGroup;
    const int64_t before = uneven ? 0 : high_tokens(stored);
    const int64_t row =
        div_ceil(before + closing * kKvGroup, page_tokens) - div_ceil(before, page_tokens);
    const bool compaction = compresses && count > 0 && stored + count >= prompt_tokens &&
                            (closing > 0 || stored < prompt_tokens);
    return heads * (row + (compaction ? 1 : 0));
  }

  // The most of `count` tokens whose growth is no more than `pages`.
  constexpr int32_t tokens_within(int64_t pages, int32_t stored, int32_t count) const {
    while (count > 0 && growth(stored, count) > pages) {
      // One group less is closed, or the prompt is not ended.
      const int32_t border = (stored + count) / kKvGroup * kKvGroup - stored;
      count = border > 0 ? border - 1 : count - 1;
    }
    return count;
  }
};

}  // namespace tessera
