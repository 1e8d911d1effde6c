#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/kv/kv_arena.h"

namespace tessera {

// The rows of a slot in layers with a window, for planning. Such a row holds the pages that its
// next queries read, all of them in the format of the high tier. Pages that its queries have passed
// are given back after each step. No policy compresses these rows.
//
// Queries pass pages in steps of `step` tokens, those of a prefix block. So the slot still has what
// a continuation at the end of its last whole block reads, and the prefix cache can keep it.
struct KvWindows {
  // Tokens that a step computes of one sequence, at least where its window is shorter. With more,
  // rows would hold many more pages during a step than between steps.
  static constexpr int32_t kMinRun = 512;

  int32_t rows = 0;    // in all layers with a window
  int32_t window = 0;  // positions that a query sees
  int32_t step = kKvGroup;

  static KvWindows of(const KvArenaShape& shape) {
    return {static_cast<int32_t>(shape.windowed_rows()), shape.window(),
            std::max(kKvGroup, shape.prefix_block_tokens)};
  }

  // Returns: the position whose pages in front are given back, if `stored` tokens are stored.
  constexpr int32_t position(int32_t stored) const { return stored / step * step; }
  // Returns: pages of a row that are given back then.
  constexpr int32_t passed(int32_t stored, int32_t page_tokens) const {
    return passed_pages(window, position(stored), page_tokens);
  }
  // Returns: pages of all rows that hold `stored` tokens.
  constexpr int64_t pages_for(int64_t stored, int32_t page_tokens) const {
    return rows *
           (closed_pages(stored, page_tokens) - passed(static_cast<int32_t>(stored), page_tokens));
  }
  // Returns: pages of all rows that the next `count` tokens take.
  constexpr int64_t growth(int32_t stored, int32_t count, int32_t page_tokens) const {
    return rows * (closed_pages(stored + count, page_tokens) - closed_pages(stored, page_tokens));
  }
  // Returns: the most tokens that a step computes of one sequence.
  constexpr int32_t run() const {
    return std::max(kMinRun, static_cast<int32_t>(round_up(window, kKvGroup)));
  }
  // Returns: the most pages that a row holds in a step of at most `tokens` tokens, whole groups.
  constexpr int64_t most_pages(int32_t tokens, int32_t page_tokens) const {
    const int64_t seen = round_up(window - 1, kKvGroup);
    const int64_t held = seen + tokens + step - kKvGroup;
    return div_ceil(held, page_tokens) + (kKvGroup % page_tokens == 0 ? 0 : 1);
  }
  // Returns: an upper bound of the pages that are taken beyond those of `stored` tokens at any
  // time, until `tokens` tokens are stored.
  constexpr int64_t growth_to(int32_t stored, int32_t tokens, int32_t page_tokens) const {
    if (rows == 0) {
      return 0;
    }
    const int64_t most = rows * most_pages(run(), page_tokens) - pages_for(stored, page_tokens);
    return std::max<int64_t>(0, std::min(most, growth(stored, tokens - stored, page_tokens)));
  }

 private:
  static constexpr int64_t closed_pages(int64_t tokens, int32_t page_tokens) {
    return div_ceil(tokens / kKvGroup * kKvGroup, page_tokens);
  }
};

}  // namespace tessera
