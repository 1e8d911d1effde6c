#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/pages/free_list.h"
#include "kernels/cpu/pages/kv_ops.h"

namespace tessera::scalar {
namespace {

void release(const KvPool& pool, int32_t slot) {
  TESSERA_CHECK(slot >= 0 && slot < pool.slots, "kv_resize: no such slot");
  const FreeList free_list(pool);
  const KvPagesView& pages = pool.pages;
  const int64_t first = pages.row_index(slot, 0, 0);
  for (int64_t row = first; row < first + int64_t{pages.layers} * pages.kv_heads; ++row) {
    int32_t* table = pool.tables + row * pages.row_pages;
    int32_t left = 0;
    if (pool.window_of(row - first) > 0) {
      left = static_cast<int32_t>(
          std::find_if(table, table + pages.row_pages, [](int32_t id) { return id != kNoPage; }) -
          table);
    }
    for (; left < pages.row_pages && table[left] != kNoPage; ++left) {
      free_list.release_page(table[left]);
      table[left] = kNoPage;
    }
    for (int32_t i = pages.row_pages - 1; i > left && table[i] != kNoPage; --i) {
      free_list.release_page(table[i]);
      table[i] = kNoPage;
    }
    pages.rows[row] = {};
  }
}

void pass(const KvPool& pool, const KvPassed& passed) {
  const KvPagesView& pages = pool.pages;
  TESSERA_CHECK(passed.slot >= 0 && passed.slot < pool.slots, "kv_resize: no such slot");
  const FreeList free_list(pool);
  const int32_t capacity = pages.layouts[passed.tier].capacity;
  const int64_t first = pages.row_index(passed.slot, 0, 0);
  for (int64_t head = 0; head < int64_t{pages.layers} * pages.kv_heads; ++head) {
    const int32_t window = pool.window_of(head);
    int32_t* table = pool.tables + (first + head) * pages.row_pages;
    const int32_t end = passed_pages(window, passed.to, capacity);
    for (int32_t i = passed_pages(window, passed.from, capacity); i < end; ++i) {
      TESSERA_CHECK(table[i] != kNoPage, "kv_resize: a page is passed twice");
      free_list.release_page(table[i]);
      table[i] = kNoPage;
    }
  }
}

// Returns: number of pages taken.
int32_t grow(const KvPool& pool, const KvGrowth& growth) {
  const KvPagesView& pages = pool.pages;
  TESSERA_CHECK(growth.slot >= 0 && growth.slot < pool.slots, "kv_resize: no such slot");
  TESSERA_CHECK(growth.tokens >= 0, "kv_resize: a negative growth");
  const FreeList free_list(pool);
  const int64_t high_capacity = pages.layouts[growth.tiers.high].capacity;
  const int64_t low_capacity = pages.layouts[growth.tiers.low].capacity;
  TESSERA_CHECK(high_capacity > 0 && low_capacity > 0, "kv_resize: no such tier");
  const int64_t first = pages.row_index(growth.slot, 0, 0);
  int32_t taken = 0;
  for (int64_t row = first; row < first + int64_t{pages.layers} * pages.kv_heads; ++row) {
    int32_t* table = pool.tables + row * pages.row_pages;
    const KvRow& counts = pages.rows[row];
    const int64_t wanted = div_ceil(int64_t{counts.high} + growth.tokens, high_capacity);
    TESSERA_CHECK(wanted + div_ceil(counts.low, low_capacity) <= pages.row_pages,
                  "kv_resize: more pages than a row has room for");
    for (int64_t i = div_ceil(counts.high, high_capacity); i < wanted; ++i) {
      if (table[i] == kNoPage) {  // otherwise an earlier growth left this page
        table[i] = free_list.take();
        ++taken;
      }
    }
  }
  return taken;
}

}  // namespace

void kv_resize(const KvResizeArgs& args, Stream) {
  for (const int32_t slot : args.released) {
    release(args.pool, slot);
  }
  for (const KvPassed& passed : args.passed) {
    pass(args.pool, passed);
  }
  TESSERA_CHECK(args.taken.empty() || args.taken.size() == args.grown.size(),
                "kv_resize: a number of pages for each growth");
  for (size_t i = 0; i < args.grown.size(); ++i) {
    const int32_t taken = grow(args.pool, args.grown[i]);
    if (!args.taken.empty()) {
      args.taken[i] = taken;
    }
  }
}

}  // namespace tessera::scalar
