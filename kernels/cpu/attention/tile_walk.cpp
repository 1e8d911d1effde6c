#include "kernels/cpu/attention/tile_walk.h"

#include <algorithm>

#include "base/check.h"

namespace tessera {
namespace {

constexpr int32_t kKeyTile = KvPageLayout::kKeyTile;
constexpr int64_t kScaleBytes = kKeyTile * int64_t{sizeof(f16)};

void place(const TileShape& shape, const std::byte* page, int64_t in_page, int32_t i,
           KvTile& tile) {
  tile.keys[i] = page + in_page * shape.key_bytes;
  tile.values[i] = page + shape.values + in_page * shape.value_bytes;
  tile.scales[i] = page + shape.key_scales + in_page * kScaleBytes;
}

void fetch(const std::byte* bytes, int64_t count) {
  constexpr int64_t kLine = 64;
  for (int64_t at = 0; at < count; at += kLine) {
    __builtin_prefetch(bytes + at);
  }
}

}  // namespace

TileShapes::TileShapes(const AttentionArgs& args) : dense(args.pages.residual_layout) {
  for (const SequenceSpan& span : args.sequences) {
    for (const uint8_t tier : {span.tiers.high, span.tiers.low}) {
      if (tiers[tier].page_tiles == 0) {
        tiers[tier] = TileShape(args.pages.layouts[tier]);
      }
    }
  }
}

int32_t TileWalk::tokens(int32_t tile) const {
  const int32_t at = place_of(tile);
  const bool is_high = at < high_tiles_;
  const int32_t before = (is_high ? at : at - high_tiles_) * kAttentionTile;
  return std::min(kAttentionTile, (is_high ? row_.high : row_.low) - before);
}

bool TileWalk::any_floats(int32_t end) const {
  return (end == tiles() && dense_.layout.format.is_floats()) || high_.layout.format.is_floats() ||
         low_.layout.format.is_floats();
}

void TileWalk::find(int32_t tile, int32_t begin, int32_t end, KvTile& found) const {
  const bool dense = is_dense(tile);
  const int32_t at = place_of(tile);
  const bool is_high = at < high_tiles_;
  const TileShape& shape = dense ? dense_ : is_high ? high_ : low_;
  const int32_t first = begin / kKeyTile;
  const int32_t last = (end - 1) / kKeyTile;
  found.shape = &shape;
  if (dense) {
    for (int32_t i = first; i <= last; ++i) {
      place(shape, row_.dense, i, i, found);
    }
  } else {
    const int32_t in_tier = (is_high ? at : at - high_tiles_) * kKeyTilesInTile + first;
    int32_t entry = in_tier / shape.page_tiles;
    int32_t in_page = in_tier % shape.page_tiles;
    const std::byte* page = page_at(is_high, entry);
    for (int32_t i = first; i <= last; ++i, ++in_page) {
      if (in_page == shape.page_tiles) {
        in_page = 0;
        page = page_at(is_high, ++entry);
      }
      place(shape, page, in_page, i, found);
    }
  }
  for (int32_t i = 0; i < kKeyTilesInTile; ++i) {
    if (i < first || i > last) {
      found.keys[i] = found.keys[first];
      found.values[i] = found.values[first];
      found.scales[i] = found.scales[first];
    }
  }
}

const std::byte* TileWalk::page_at(bool is_high, int32_t entry) const {
  const int32_t page_id = row_.page_ids[is_high ? entry : pages_.row_pages - 1 - entry];
  TESSERA_CHECK(page_id >= 0, "attention: the row has no page for a token");
  return pages_.page(page_id);
}

void fetch_tile(const KvTile& tile) {
  for (int32_t i = 0; i < kKeyTilesInTile; ++i) {
    fetch(tile.keys[i], tile.shape->key_bytes);
  }
  for (int32_t i = 0; i < kKeyTilesInTile; ++i) {
    fetch(tile.values[i], tile.shape->value_bytes);
  }
}

}  // namespace tessera
