#pragma once

#include "kernels/cpu/compress/token_ops.h"
#include "kernels/cpu/compress/token_row.h"

namespace tessera {

// What compaction does to one row.
struct RowChange {
  int32_t demoted = 0;
  int32_t dropped = 0;
  int32_t spare = kNoPage;  // a free page for the low tier, should it need one before it frees one;
                            // kNoPage again if it was taken
  // Entries at either end of the row's table afterwards: pages in use, then pages to be freed.
  int32_t left_pages = 0;
  int32_t right_pages = 0;
};

// How many tokens `cuts` would demote and drop: a pass over the marks.
RowChange count_change(const TokenRow& row, const Significance& significance, const RowCuts& cuts);

// Applies `cuts` to one row: its pages, marks and counts. Pages that end up empty stay in the table
// behind those in use, because the free list belongs to all rows. `change` is count_change's, with
// a spare page if it demotes.
void compact_row(const TokenOps& ops, const KvPool& pool, const KvCompression& sequence,
                 const RowCuts& cuts, const TokenRow& row, RowChange& change);

}  // namespace tessera
