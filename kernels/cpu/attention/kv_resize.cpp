#include "kernels/check.h"
#include "kernels/cpu/attention/ops.h"

namespace tessera::scalar {
namespace {

struct PageTotals {
  int64_t returned = 0;
  int64_t taken = 0;
};

PageTotals count_pages(const KvResizeArgs& args, int64_t slot_rows) {
  PageTotals totals;
  for (const KvRowResize& change : args.changes) {
    TESSERA_CHECK(change.slot >= 0 && change.slot < args.pool.slots, "kv_resize: no such slot");
    TESSERA_CHECK(change.pages_before >= 0 && change.pages_before <= args.pool.row_pages,
                  "kv_resize: pages before exceed the row");
    TESSERA_CHECK(change.pages_after >= 0 && change.pages_after <= args.pool.row_pages,
                  "kv_resize: pages after exceed the row");
    const int64_t growth = int64_t{change.pages_after} - change.pages_before;
    (growth < 0 ? totals.returned : totals.taken) += slot_rows * (growth < 0 ? -growth : growth);
  }
  return totals;
}

// One change's rows, each of which moves |after - before| pages to or from the free list: row r's
// stand at `place` + r * |after - before|. Returns the place behind the last.
int64_t move_pages(const KvPool& pool, const KvRowResize& change, int64_t slot_rows,
                   int64_t place) {
  const bool grows = change.pages_after > change.pages_before;
  const int32_t first = grows ? change.pages_before : change.pages_after;
  const int32_t last = grows ? change.pages_after : change.pages_before;
  int32_t* row = pool.tables + int64_t{change.slot} * slot_rows * pool.row_pages;
  for (int64_t r = 0; r < slot_rows; ++r, row += pool.row_pages) {
    TESSERA_CHECK(change.pages_before == 0 || row[change.pages_before - 1] != kNoPage,
                  "kv_resize: the row has fewer pages than stated");
    for (int32_t i = first; i < last; ++i, ++place) {
      int32_t& free_id = pool.free_list[place % pool.pages];
      TESSERA_CHECK((row[i] == kNoPage) == grows, "kv_resize: the row has more pages than stated");
      if (grows) {
        row[i] = free_id;
        free_id = kNoPage;
      } else {
        free_id = row[i];
        row[i] = kNoPage;
      }
    }
  }
  return place;
}

}  // namespace

void kv_resize(const KvResizeArgs& args, Stream) {
  const KvPool& pool = args.pool;
  const int64_t slot_rows = int64_t{pool.layers} * pool.kv_heads;
  const PageTotals totals = count_pages(args, slot_rows);
  KvFreeRange& range = *pool.free_range;
  TESSERA_CHECK(totals.taken <= range.count + totals.returned, "kv_resize: not enough free pages");

  // What shrinks goes to the tail first, so that what grows may take it in the same call.
  int64_t tail = range.head + range.count;
  for (const KvRowResize& change : args.changes) {
    if (change.pages_after < change.pages_before) {
      tail = move_pages(pool, change, slot_rows, tail);
    }
  }
  int64_t head = range.head;
  for (const KvRowResize& change : args.changes) {
    if (change.pages_after > change.pages_before) {
      head = move_pages(pool, change, slot_rows, head);
    }
  }
  range = {head % pool.pages, tail - head};
}

}  // namespace tessera::scalar
