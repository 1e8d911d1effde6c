#include <utility>

#include "kernels/check.h"
#include "kernels/cpu/pages/pages.h"

namespace tessera {
namespace {

void check_change(const KvPool& pool, const KvRowResize& change) {
  TESSERA_CHECK(change.slot >= 0 && change.slot < pool.slots, "kv_resize: no such slot");
  TESSERA_CHECK(change.pages_before >= 0 && change.pages_before <= pool.row_pages,
                "kv_resize: pages before exceed the row");
  TESSERA_CHECK(change.pages_after >= 0 && change.pages_after <= pool.row_pages,
                "kv_resize: pages after exceed the row");
}

// One row gives up the pages from `change.pages_after` on: those without another owner go to the
// free list, from place `tail` on. Returns the place behind the last.
int64_t give_back(const KvPool& pool, const KvRowResize& change, int32_t* row, int64_t tail) {
  for (int32_t i = change.pages_after; i < change.pages_before; ++i) {
    const int32_t page = std::exchange(row[i], kNoPage);
    TESSERA_CHECK(page != kNoPage, "kv_resize: the row has fewer pages than stated");
    if (--pool.owners[page] == 0) {
      pool.free_list[tail % pool.pages] = page;
      ++tail;
    }
  }
  return tail;
}

// One row takes its new pages from the free list, from place `head` on, as neighbours.
int64_t take(const KvPool& pool, const KvRowResize& change, int32_t* row, int64_t head) {
  for (int32_t i = change.pages_before; i < change.pages_after; ++i, ++head) {
    TESSERA_CHECK(row[i] == kNoPage, "kv_resize: the row has more pages than stated");
    row[i] = std::exchange(pool.free_list[head % pool.pages], kNoPage);
    pool.owners[row[i]] = 1;
  }
  return head;
}

// All rows of one change, one after another from `place` on.
template <class MoveRow>
int64_t move_rows(const KvPool& pool, const KvRowResize& change, int64_t place, MoveRow move_row) {
  const int64_t rows = int64_t{pool.layers} * pool.kv_heads;
  int32_t* row = pool.tables + change.slot * rows * pool.row_pages;
  for (int64_t r = 0; r < rows; ++r, row += pool.row_pages) {
    TESSERA_CHECK(change.pages_before == 0 || row[change.pages_before - 1] != kNoPage,
                  "kv_resize: the row has fewer pages than stated");
    place = move_row(pool, change, row, place);
  }
  return place;
}

}  // namespace

void kv_resize(const KvResizeArgs& args, Stream) {
  const KvPool& pool = args.pool;
  KvFreeRange& range = *pool.free_range;
  // What shrinks goes to the tail first, so that what grows may take it in the same call.
  int64_t tail = range.head + range.count;
  int64_t taken = 0;
  for (const KvRowResize& change : args.changes) {
    check_change(pool, change);
    if (change.pages_after < change.pages_before) {
      tail = move_rows(pool, change, tail, give_back);
    } else {
      taken += int64_t{pool.layers} * pool.kv_heads * (change.pages_after - change.pages_before);
    }
  }
  TESSERA_CHECK(taken <= tail - range.head, "kv_resize: not enough free pages");
  int64_t head = range.head;
  for (const KvRowResize& change : args.changes) {
    if (change.pages_after > change.pages_before) {
      head = move_rows(pool, change, head, take);
    }
  }
  range = {head % pool.pages, tail - head};
}

}  // namespace tessera
