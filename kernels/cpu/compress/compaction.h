#pragma once

#include <span>

#include "kernels/cpu/pages/token_ops.h"
#include "kernels/kv/token_row.h"

namespace tessera {

// Result of compaction for one row.
struct RowChange {
  int32_t demoted = 0;
  int32_t dropped = 0;
  int32_t spare = kNoPage;  // free page for the low tier, or kNoPage; kNoPage once taken
  // Entries at each end of the row's table after compaction: pages in use, then pages to free.
  int32_t left_pages = 0;
  int32_t right_pages = 0;
};

// Decides about every token of the row by `cutoffs`.
// fates: [row_token_scores], output; a token's decision has the index of its score.
// change: its demoted and dropped tokens are counted.
void decide(const TokenRow& row, const Significance& significance, const RowCutoffs& cutoffs,
            std::span<TokenDecision> decisions, RowChange& change);

// Applies the decisions to one row: its pages, token scores and counts. Pages that become empty
// stay in the table behind those in use, because all rows share the free list. A row takes
// change.spare if it needs a low page before it has emptied a high one.
// Requires: `fates` and `change` are those of decide().
void compact_row(const TokenOps& ops, const KvPool& pool, const KvCompression& sequence,
                 std::span<const TokenDecision> decisions, const TokenRow& row, RowChange& change);

}  // namespace tessera
