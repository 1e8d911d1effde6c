#pragma once

#include <span>

#include "kernels/cpu/compress/token_ops.h"
#include "kernels/cpu/compress/token_row.h"

namespace tessera {

// What compaction does to one row.
struct RowChange {
  int32_t demoted = 0;
  int32_t dropped = 0;
  int32_t spare = kNoPage;  // a free page for the low tier, if there is one, should it need one
                            // before it frees one; kNoPage again if it was taken
  // Entries at either end of the row's table afterwards: pages in use, then pages to be freed.
  int32_t left_pages = 0;
  int32_t right_pages = 0;
};

// What `cuts` make of every token, `fates` [row_token_scores], each where its mark is; `change`
// counts those that they demote and drop.
void decide(const TokenRow& row, const Significance& significance, const RowCutoffs& cutoffs,
            std::span<TokenDecision> fates, RowChange& change);

// Applies them to one row: its pages, marks and counts. Pages that end up empty stay in the table
// behind those in use, because the free list belongs to all rows. `change` is decide's.
void compact_row(const TokenOps& ops, const KvPool& pool, const KvCompression& sequence,
                 std::span<const TokenDecision> fates, const TokenRow& row, RowChange& change);

}  // namespace tessera
