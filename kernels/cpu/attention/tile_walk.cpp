#include "kernels/cpu/attention/tile_walk.h"

#include <algorithm>

#include "kernels/check.h"

namespace tessera {
namespace {

constexpr int32_t kKeyTile = KvPageLayout::kKeyTile;

void place(const TileShape& shape, const std::byte* page, int64_t in_page, int32_t i,
           KvTile& tile) {
  tile.keys[i] = page + in_page * shape.key_bytes;
  tile.values[i] = page + shape.values + in_page * shape.value_bytes;
  if (shape.layout.format.is_codes()) {
    const int64_t scales = in_page * shape.layout.scale_tile_bytes();
    tile.key_scales[i] = page + shape.key_scales + scales;
    tile.key_zeros[i] = page + shape.key_zeros + scales;
    tile.value_scales[i] = page + shape.value_scales + scales;
    tile.value_zeros[i] = page + shape.value_zeros + scales;
  }
}

void repeat(int32_t from, int32_t i, KvTile& tile) {
  tile.keys[i] = tile.keys[from];
  tile.values[i] = tile.values[from];
  tile.key_scales[i] = tile.key_scales[from];
  tile.key_zeros[i] = tile.key_zeros[from];
  tile.value_scales[i] = tile.value_scales[from];
  tile.value_zeros[i] = tile.value_zeros[from];
}

}  // namespace

TileShapes::TileShapes(const AttentionArgs& args) : dense(args.pages.window_layout) {
  for (const SequenceSpan& span : args.sequences) {
    for (const uint8_t tier : {span.tiers.high, span.tiers.low}) {
      if (tiers[tier].page_tiles == 0) {
        tiers[tier] = TileShape(args.pages.layouts[tier]);
      }
    }
  }
}

int32_t TileWalk::tokens(int32_t tile) const {
  const bool is_high = tile < high_tiles_;
  const int32_t before = (is_high ? tile : tile - high_tiles_) * kAttentionTile;
  return std::min(kAttentionTile, (is_high ? row_.high : row_.low) - before);
}

bool TileWalk::any_codes(int32_t first, int32_t end) const {
  const bool high = first < high_tiles_ && high_.layout.format.is_codes();
  const bool low = first < high_tiles_ + low_tiles_ && std::max(first, high_tiles_) < end &&
                   low_tiles_ > 0 && low_.layout.format.is_codes();
  return high || low;
}

bool TileWalk::any_floats(int32_t first, int32_t end) const {
  return end == tiles() || !high_.layout.format.is_codes() || !low_.layout.format.is_codes() ||
         first == end;
}

void TileWalk::find(int32_t tile, int32_t begin, int32_t end, KvTile& found) const {
  const bool dense = is_dense(tile);
  const bool is_high = tile < high_tiles_;
  const TileShape& shape = dense ? dense_ : is_high ? high_ : low_;
  const int32_t in_tier = dense || is_high ? tile : tile - high_tiles_;
  int32_t entry = dense ? 0 : in_tier * kKeyTilesInTile / shape.page_tiles;
  int32_t in_page = dense ? 0 : in_tier * kKeyTilesInTile % shape.page_tiles;
  found.shape = &shape;
  const int32_t first_present = begin / kKeyTile;
  const int32_t end_present = static_cast<int32_t>(div_ceil(end, kKeyTile));
  for (int32_t i = 0; i < kKeyTilesInTile; ++i, ++in_page) {
    if (in_page == shape.page_tiles) {
      in_page = 0;
      ++entry;
    }
    if (i < first_present || i >= end_present) {
      continue;
    }
    const std::byte* page = row_.dense;
    if (!dense) {
      const int32_t page_id = row_.page_ids[is_high ? entry : pages_.row_pages - 1 - entry];
      TESSERA_CHECK(page_id >= 0, "attention: the row has no page for a token");
      page = pages_.page(page_id);
    }
    place(shape, page, in_page, i, found);
  }
  for (int32_t i = 0; i < kKeyTilesInTile; ++i) {
    if (i < first_present || i >= end_present) {
      repeat(first_present, i, found);
    }
  }
}

}  // namespace tessera
