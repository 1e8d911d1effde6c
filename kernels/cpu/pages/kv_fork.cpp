#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/pages/free_list.h"
#include "kernels/cpu/pages/key_sketch.h"
#include "kernels/cpu/pages/kv_ops.h"

namespace tessera::scalar {
namespace {

// One end of a row: `tokens` tokens in the pages at entry, entry + step, ...
struct RowEnd {
  const KvPageLayout& layout;
  int32_t tokens;
  int64_t entry;
  int64_t step;
};

void fork_end(const KvPool& pool, const RowEnd& end, const int32_t* from, int32_t* to) {
  const FreeList free_list(pool);
  int64_t entry = end.entry;
  for (int32_t full = end.tokens / end.layout.capacity; full > 0; --full, entry += end.step) {
    free_list.share(from[entry]);
    to[entry] = from[entry];
  }
  const int32_t rest = end.tokens % end.layout.capacity;
  if (rest != 0) {
    to[entry] = free_list.take();
    std::byte* const page = pool.pages.page(to[entry]);
    std::memcpy(page, pool.pages.page(from[entry]), static_cast<size_t>(pool.pages.page_bytes));
    if (has_key_sketch(pool.pages, end.layout)) {
      // The source's page may hold more tokens by now, on which the copy must not depend.
      write_key_sketch(end.layout, rest, page);
    }
  }
}

// Copies the pages of a row of a layer with a window.
void copy_windowed(const KvPool& pool, const KvFork& fork, int32_t window, const int32_t* from,
                   int32_t* to) {
  const int32_t capacity = pool.pages.layouts[fork.tiers.high].capacity;
  const int64_t end = div_ceil(fork.closed_tokens(), capacity);
  for (int32_t i = passed_pages(window, fork.passed, capacity); i < end; ++i) {
    TESSERA_CHECK(from[i] != kNoPage, "kv_fork: a page that the source has passed");
    to[i] = FreeList(pool).take();
    std::memcpy(pool.pages.page(to[i]), pool.pages.page(from[i]),
                static_cast<size_t>(pool.pages.page_bytes));
  }
}

void fork_row(const KvPool& pool, const KvFork& fork, int64_t from, int64_t to) {
  const KvPagesView& pages = pool.pages;
  const int32_t* source = pages.table(from);
  int32_t* target = pool.tables + to * pages.row_pages;
  const int32_t window = pool.window_of(from % (int64_t{pages.layers} * pages.kv_heads));
  const KvRow counts = fork.counts_of(pages.rows[from], window);
  TESSERA_CHECK(target[0] == kNoPage && target[pages.row_pages - 1] == kNoPage,
                "kv_fork: the copy's slot holds pages");
  if (window > 0) {
    copy_windowed(pool, fork, window, source, target);
  } else {
    fork_end(pool, {pages.layouts[fork.tiers.high], counts.high, 0, 1}, source, target);
    fork_end(pool, {pages.layouts[fork.tiers.low], counts.low, pages.row_pages - 1, -1}, source,
             target);
  }
  pages.rows[to] = counts;
  std::memcpy(pages.residual(to), pages.residual(from),
              static_cast<size_t>(pages.residual_layout.page_bytes));
  if (pages.scores_all_tokens()) {
    const KvTokenScore* token_scores = pages.token_score_row(from);
    const int32_t first_low = pages.row_token_scores - counts.low;
    std::copy_n(token_scores, std::min(counts.high + kKvGroup, first_low),
                pages.token_score_row(to));
    std::copy_n(token_scores + first_low, counts.low, pages.token_score_row(to) + first_low);
  }
}

}  // namespace

void kv_fork(const KvForkArgs& args, Stream) {
  const KvPagesView& pages = args.pool.pages;
  for (const KvFork& fork : args.forks) {
    TESSERA_CHECK(fork.from >= 0 && fork.from < args.pool.slots && fork.to >= 0 &&
                      fork.to < args.pool.slots && fork.from != fork.to,
                  "kv_fork: no such slots");
    TESSERA_CHECK(
        pages.layouts[fork.tiers.high].capacity > 0 && pages.layouts[fork.tiers.low].capacity > 0,
        "kv_fork: no such tier");
    const int64_t from = pages.row_index(fork.from, 0, 0);
    const int64_t to = pages.row_index(fork.to, 0, 0);
    for (int64_t row = 0; row < int64_t{pages.layers} * pages.kv_heads; ++row) {
      fork_row(args.pool, fork, from + row, to + row);
    }
  }
}

}  // namespace tessera::scalar
