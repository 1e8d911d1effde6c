#pragma once

#include "base/check.h"
#include "kernels/kv/kv_pool.h"

namespace tessera {

// The pool's circular list of free pages, for the ops that move pages. Pages are returned at the
// tail and taken from the head, so a page stays unused as long as possible.
// Requires: `pool` outlives this. Not thread-safe.
class FreeList {
 public:
  explicit FreeList(const KvPool& pool) : pool_(pool) {}

  // Returns: a page with one owner.
  // Requires: a free page.
  int32_t take() const {
    KvFreeRange& range = *pool_.free_range;
    TESSERA_CHECK(range.count > 0, "not enough free pages");
    const int32_t page_id = pool_.free_list[range.head];
    range.head = range.head + 1 == pool_.page_count ? 0 : range.head + 1;
    --range.count;
    pool_.owners[page_id] = 1;
    return page_id;
  }

  void share(int32_t page_id) const {
    TESSERA_CHECK(pool_.owners[page_id] < UINT16_MAX, "a page with too many owners");
    ++pool_.owners[page_id];
  }

  // Removes one owner. Without owners the page becomes free.
  void release_page(int32_t page_id) const {
    TESSERA_CHECK(pool_.owners[page_id] > 0, "a free page is given back");
    if (--pool_.owners[page_id] == 0) {
      KvFreeRange& range = *pool_.free_range;
      int64_t tail = range.head + range.count;
      tail = tail >= pool_.page_count ? tail - pool_.page_count : tail;
      pool_.free_list[tail] = page_id;
      ++range.count;
    }
  }

 private:
  const KvPool& pool_;
};

}  // namespace tessera
