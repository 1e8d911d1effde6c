#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/simt/simt.h"

namespace tessera::cuda {

// Tokens of one (slot, layer, KV head) row that the pairs of one block see. Reading order: the high
// tier, the low tier, then the pairs' own group, unquantised. The last part includes the end of the
// previous group if the span reads that unquantised too (SequenceSpan::older_dense()).
struct RowTokens {
  const int32_t* page_ids;  // page-table row
  int32_t high;
  int32_t low;
  const std::byte* dense;

  TESSERA_DEVICE int32_t high_tiles() const { return (high + kKvGroup - 1) / kKvGroup; }
  TESSERA_DEVICE int32_t low_tiles() const { return (low + kKvGroup - 1) / kKvGroup; }
  TESSERA_DEVICE int32_t tiles() const { return high_tiles() + low_tiles() + 1; }
};

// Returns: number of dense groups of the step that belong to sequences before `sequence`.
// Requires: all lanes call it.
TESSERA_DEVICE int32_t dense_groups_before(const SequenceSpan* sequences, int32_t sequence) {
  int32_t groups = 0;
  for (int32_t i = simt::lane(); i < sequence; i += simt::kWarp) {
    groups += dense_groups(sequences[i]);
  }
  TESSERA_UNROLL
  for (int32_t mask = 1; mask < simt::kWarp; mask *= 2) {
    groups += simt::shuffle_xor(groups, mask);
  }
  return groups;
}

// Page-table rows of a step in one layer. `pages` is not owned.
struct StepRows {
  const KvPagesView& pages;
  int32_t layer;
  const std::byte* dense;

  // Returns: tokens of a row that queries of `group` see, without that group's place. `stored`:
  // kv_store has run.
  TESSERA_DEVICE RowTokens counts(const SequenceSpan& span, int64_t row, int32_t group,
                                  bool stored) const {
    const int32_t closed = stored ? span.closed_after() : span.closed_before();
    return {.page_ids = pages.table(row),
            .high = pages.rows[row].high - (closed - group) * kKvGroup - span.older_dense(),
            .low = pages.rows[row].low,
            .dense = nullptr};
  }

  // Returns: the same with that place. `first_dense`: dense_groups_before() of the sequence.
  TESSERA_DEVICE RowTokens tokens(const SequenceSpan& span, int32_t kv_head, int32_t first_dense,
                                  int32_t group) const {
    const int64_t row = pages.row_index(span.slot, layer, kv_head);
    const int64_t page =
        (int64_t{first_dense} + group - span.closed_before()) * pages.kv_heads + kv_head;
    RowTokens tokens = counts(span, row, group, true);
    tokens.dense = group == span.last_group() ? pages.residual(row)
                                              : dense + page * pages.residual_layout.page_bytes;
    simt::check(tokens.high >= 0 && tokens.low >= 0);
    return tokens;
  }
};

// Addresses of the 16 tokens of a key tile in a page.
struct TilePlace {
  const std::byte* keys;
  const std::byte* values;
  const f16* key_scales;
  const f16* value_scales;
  int32_t zeros;  // f16 elements from a scale to its zero
};

// The scales (or zeros) of four neighbouring tokens as f32. `words`: as f16.
struct FourScales {
  float of[4];

  TESSERA_DEVICE explicit FourScales(const simt::WordPair& words) {
    TESSERA_UNROLL
    for (int32_t i = 0; i < 4; ++i) {
      of[i] = simt::as_f32(f16{static_cast<uint16_t>(words.at[i / 2] >> (i % 2 * 16))});
    }
  }
  // from: the first token's, in global memory.
  TESSERA_DEVICE static FourScales at(const f16* from) {
    return FourScales(simt::load_global_pair(from));
  }
};

// A tile: 64 tokens of a row that attention computes at once.
struct Tile {
  static constexpr int32_t kPlaces = kKvGroup / KvPageLayout::kKeyTile;

  // By value: where format and head_dim are constants of the kernel, all that follows from them is.
  KvPageLayout layout;
  int32_t begin;  // at least one pair sees tokens [begin, end)
  int32_t end;
  bool is_dense;
  int32_t first_place = 0;  // of its kPlaces places in the warp's memory

  TESSERA_DEVICE bool sees(int32_t token) const { return token >= begin && token < end; }
  TESSERA_DEVICE bool is_full() const { return begin == 0 && end == kKvGroup; }
  // Parts of 16 tokens that a pair sees: [first_part(), end_part()).
  TESSERA_DEVICE int32_t first_part() const { return begin / KvPageLayout::kKeyTile; }
  TESSERA_DEVICE int32_t end_part() const { return (end - 1) / KvPageLayout::kKeyTile + 1; }

  // Returns: addresses of tokens [16 part, 16 part + 16), or of the nearest part that a pair sees:
  // so every address can be read. `in_tier`: index of the tile in its tier.
  // Requires: begin < end.
  TESSERA_DEVICE TilePlace place(const KvPagesView& pages, const RowTokens& row, bool is_high,
                                 int32_t in_tier, int32_t part) const {
    constexpr int32_t kTile = KvPageLayout::kKeyTile;
    const int32_t last = end_part() - 1;
    part = part < first_part() ? first_part() : part > last ? last : part;
    const std::byte* page = row.dense;
    int32_t in_page = part;
    if (!is_dense) {
      const auto first = static_cast<uint32_t>(in_tier * kPlaces + part);  // in key tiles
      const auto page_tiles = static_cast<uint32_t>(layout.capacity) / kTile;
      const auto entry = static_cast<int32_t>(first / page_tiles);
      in_page = static_cast<int32_t>(first % page_tiles);
      const auto page_id = static_cast<int32_t>(
          simt::load_global_word(row.page_ids + (is_high ? entry : pages.row_pages - 1 - entry)));
      simt::check(page_id >= 0);
      page = pages.page(page_id);
    }
    return {page + layout.keys_offset(in_page), page + layout.values_offset(in_page),
            reinterpret_cast<const f16*>(page + layout.key_scales_offset(in_page)),
            reinterpret_cast<const f16*>(page + layout.value_scales_offset(in_page)),
            layout.capacity};
  }
};

}  // namespace tessera::cuda
