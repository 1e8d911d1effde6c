#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/kv/whole_layers.h"

namespace tessera {

// Tokens of one (slot, layer, KV head) row that the queries of one KV group see, in the order in
// which attention reads them. These are tokens [0, high) of the high tier, [0, low) of the low
// tier, and the group itself up to the query. The end of the previous group is included if it is
// read dense too. Pointers are not owned.
struct RowTokens {
  const int32_t* page_ids;  // the row of the page tables
  const KvPageLayout* high_layout;
  const KvPageLayout* low_layout;
  int32_t high;
  int32_t low;
  const std::byte* dense;  // a page of residual_layout
  // The tiles that are read besides the dense one, in ascending order (TileSelection). Null: all.
  const int32_t* read = nullptr;
  int32_t read_tiles = 0;

  int32_t high_tiles() const { return static_cast<int32_t>(div_ceil(high, kAttentionTile)); }
  int32_t low_tiles() const { return static_cast<int32_t>(div_ceil(low, kAttentionTile)); }
  int32_t tiles() const { return (read == nullptr ? high_tiles() + low_tiles() : read_tiles) + 1; }
};

// Returns: true if the sequence reads selected tiles in this layer. With a window it reads all that
// the window sees.
inline bool selects(const AttentionArgs& args, const SequenceSpan& span) {
  return span.selects() && args.layer >= kWholeLayers && args.sliding_window == 0;
}

// Returns: SequenceSpan::older_dense() in this layer; 0 with a window.
inline int32_t older_dense(const AttentionArgs& args, const SequenceSpan& span) {
  return args.sliding_window > 0 ? 0 : span.older_dense();
}

// `first_dense`: number of groups in args.dense that belong to earlier sequences.
inline RowTokens row_tokens(const AttentionArgs& args, const SequenceSpan& span,
                            int64_t first_dense, int32_t kv_head, int32_t group) {
  const KvPagesView& pages = args.pages;
  const int64_t row = pages.row_index(span.slot, args.layer, kv_head);
  const int64_t page = (first_dense + group - span.closed_before()) * pages.kv_heads + kv_head;
  return {.page_ids = pages.table(row),
          .high_layout = &pages.layouts[span.tiers.high],
          .low_layout = &pages.layouts[span.tiers.low],
          .high = pages.rows[row].high - (span.closed_after() - group) * kKvGroup -
                  older_dense(args, span),
          .low = pages.rows[row].low,
          .dense = group == span.last_group()
                       ? pages.residual(row)
                       : args.dense.data() + page * pages.residual_layout.page_bytes};
}

// Returns: the first position that a query at `position` sees.
inline int32_t first_visible(const AttentionArgs& args, int32_t position) {
  return args.sliding_window > 0 ? std::max(0, position + 1 - args.sliding_window) : 0;
}

// Errors: aborts if the op cannot serve its arguments. Used by every instruction set.
void check_attention(const AttentionArgs& args);

}  // namespace tessera
