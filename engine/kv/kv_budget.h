#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "engine/kv/kv_sections.h"
#include "engine/kv/kv_windows.h"
#include "kernels/kv/kv_page.h"

namespace tessera {

// Totals of the KV cache for planning, in pages. (The budget of a KvAllocator is another one: the
// tokens that a policy lets a sequence keep.) The page tables of sequences belong to the backend.
//
// Pages hold closed groups only. The open group of a sequence is in the residual buffer, which its
// slot has from the start. So a sequence needs pages only when a group closes.
struct KvBudget {
  int64_t pages_free = 0;   // KvAccounting::available_pages(): unlocked prefix blocks included
  int32_t heads = 0;        // layers * kv_heads; each has its own page-table row
  int32_t page_tokens = 0;  // tokens of one page in the default preset's high tier
  // True: a background replay holds further pages. The plan is made again without it if pages lack.
  bool replay_holds = false;

  // Pages of the closed groups of a sequence with `tokens` tokens, over all heads. Valid as long as
  // no policy has compressed them.
  constexpr int64_t pages_for(int64_t tokens) const {
    return heads * div_ceil(tokens / kKvGroup * kKvGroup, page_tokens);
  }
};

// Upper bound of the pages that further tokens of one sequence take, for planning.
struct KvDemand {
  int32_t heads = 0;        // page-table rows of layers without a window
  int32_t page_tokens = 0;  // tokens of one page of its high tier, where closed groups go
  // True if a policy has compressed the sequence. Its rows then hold different numbers of tokens,
  // and planning has only an upper bound of the pages for their next groups.
  bool uneven = false;
  int32_t low_tokens = 0;  // first tokens, from demoted prefix blocks, in the low tier
  // Pages that it takes with its slot: if it is swapped out, or for its copies of short blocks.
  int64_t swap_in_pages = 0;
  // True if compression may need one page for each page-table row before it frees any
  // (KvCompressArgs).
  // This applies to steps that reach the end of the prompt or, after it, close a group. It applies
  // to any next step of a sequence behind its prompt that was handed prefix blocks.
  bool compresses = false;
  bool handed_over = false;
  int32_t prompt_tokens = 0;
  KvSections sections = {};  // of a policy that replays
  KvWindows windows = {};    // the rows of layers with a window

  // Pages of the high tier for the closed groups of `tokens` tokens. Valid as long as no policy has
  // compressed them, except in sections.
  constexpr int64_t pages_for(int64_t tokens) const {
    return section_pages(tokens) + heads * div_ceil(high_tokens(tokens), page_tokens) +
           windows.pages_for(tokens, page_tokens);
  }

  // The full ones of these pages, without those of layers with a window. Sequences with a common
  // beginning may share them.
  constexpr int64_t full_pages(int64_t tokens) const {
    return section_pages(tokens) + heads * (high_tokens(tokens) / page_tokens);
  }

  // Pages of the compressed sections among the first `tokens` tokens.
  constexpr int64_t section_pages(int64_t tokens) const {
    const int64_t compressed = std::min<int64_t>(tokens, sections.compressed);
    return sections.tokens == 0 ? 0 : compressed / sections.tokens * sections.pages;
  }

  // Tokens in closed groups of the high tier behind compressed sections, if the sequence has
  // `tokens` tokens.
  constexpr int64_t high_tokens(int64_t tokens) const {
    const int64_t closed = tokens / kKvGroup * kKvGroup;
    const int64_t before = low_tokens + sections.compressed;
    return closed > before ? closed - before : 0;
  }

  // Upper bound of the pages for the next `count` tokens after `stored` tokens. If these take
  // several steps, fewer pages may suffice, because compression frees some in between.
  // Requires: `count` tokens of one step; with sections, at most sections.run_limit(stored).
  constexpr int64_t growth(int32_t stored, int32_t count) const {
    const int32_t position = stored + sections.replayed;
    const int32_t closing = (position + count) / kKvGroup - position / kKvGroup;
    const int64_t before = uneven ? 0 : high_tokens(position);
    const int64_t row =
        div_ceil(before + closing * kKvGroup, page_tokens) - div_ceil(before, page_tokens);
    const bool compaction = compresses && count > 0 && stored + count >= prompt_tokens &&
                            (closing > 0 || stored < prompt_tokens || handed_over);
    return heads * (row + (compaction ? 1 : 0)) + windows.growth(position, count, page_tokens);
  }

  // Upper bound of the pages that are taken beyond those of `stored` tokens at any time, until
  // `tokens` tokens are stored.
  constexpr int64_t growth_to(int32_t stored, int32_t tokens) const {
    if (sections.tokens == 0) {
      const int32_t count = tokens - stored;
      return growth(stored, count) - windows.growth(stored, count, page_tokens) +
             windows.growth_to(stored, tokens, page_tokens);
    }
    const auto pages_behind = [&](int32_t behind) {
      return heads * div_ceil(int64_t{behind / kKvGroup * kKvGroup}, page_tokens);
    };
    const int64_t now = pages_behind(sections.behind(stored));
    int64_t peak = now;
    int64_t compressed = 0;  // pages of the sections that are compressed on the way
    KvSections at = sections;
    for (; at.compresses_next() && at.next_end() <= tokens; at.compressed += at.tokens) {
      peak = std::max(peak, compressed + pages_behind(2 * at.tokens));
      compressed += at.pages;
    }
    // Rows of layers with a window hold a replay too, until its section is compressed.
    return std::max(peak, compressed + pages_behind(tokens - at.compressed)) - now +
           windows.growth_to(stored, tokens + sections.tokens, page_tokens);
  }

  // Returns: tokens that a step may compute at most.
  constexpr int32_t run_limit(int32_t stored) const {
    const int32_t limit = sections.run_limit(stored);
    return windows.rows == 0 ? limit : std::min(limit, windows.run());
  }

  // Returns: the largest number of tokens, at most `count`, whose growth is at most `pages`.
  constexpr int32_t tokens_within(int64_t pages, int32_t stored, int32_t count) const {
    while (count > 0 && growth(stored, count) > pages) {
      // Fewer tokens, so that one group less closes or the prompt does not end.
      const int32_t position = stored + sections.replayed;
      const int32_t border = (position + count) / kKvGroup * kKvGroup - position;
      count = border > 0 ? border - 1 : count - 1;
    }
    return count;
  }
};

// Steps in which a budget can be tightened (kv_tightening.h). They reach every floor that a request
// may set: 0.75^9 is less than 0.1.
inline constexpr int32_t kMaxTightenings = 9;

// The pages that tightening the budget of one running sequence frees, for planning. All zero if it
// cannot be tightened.
struct KvTightening {
  // Lower bound with i + 1 further steps. Never falls with i.
  std::array<int64_t, kMaxTightenings> freed = {};
  int64_t pages_needed = 0;  // pages that must be available in between
  int32_t steps = 0;         // steps taken before
};

}  // namespace tessera
