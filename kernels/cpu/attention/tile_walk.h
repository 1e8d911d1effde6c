#pragma once

#include <cstdint>

#include "kernels/cpu/attention/row_tokens.h"
#include "kernels/cpu/tiles/pair_block.h"

namespace tessera {

// Tile shapes that a step reads: of the tiers in the arena's order, and of the dense groups.
struct TileShapes {
  explicit TileShapes(const AttentionArgs& args);

  TileShape tiers[kMaxKvLayouts];
  TileShape dense;
};

// Finds the tiles of one row, for the queries of one KV group. A tile is counted among those that
// are read; its place is counted among all. `pages` and `shapes` are not owned and must outlive
// this.
class TileWalk {
 public:
  TileWalk(const KvPagesView& pages, const TileShapes& shapes, const RowTokens& row, KvTiers tiers)
      : pages_(pages),
        row_(row),
        high_(shapes.tiers[tiers.high]),
        low_(shapes.tiers[tiers.low]),
        dense_(shapes.dense),
        high_tiles_(row.high_tiles()),
        low_tiles_(row.low_tiles()) {}

  int32_t tiles() const { return row_.tiles(); }
  bool is_dense(int32_t tile) const { return tile == tiles() - 1; }
  // Returns: number of tokens in a tile of closed groups.
  // Requires: !is_dense(tile).
  int32_t tokens(int32_t tile) const;
  // Returns: false only if no tile in [first, end) is of codes (sparse; of floats). True may be
  // returned without such a tile.
  bool any_codes(int32_t first, int32_t end) const {
    return (end == tiles() && dense_.layout.format.is_codes()) ||
           any(first, end, [](KvFormat format) { return format.is_codes(); });
  }
  bool any_sparse(int32_t first, int32_t end) const {
    return any(first, end, [](KvFormat format) { return format.is_sparse(); });
  }
  bool any_floats(int32_t end) const;

  // Writes the addresses of a tile to `found`. Only key tiles (16 tokens) that overlap [begin, end)
  // need pages. The others repeat the address of an existing one and get no weight.
  // Errors: aborts if a needed page is missing.
  void find(int32_t tile, int32_t begin, int32_t end, KvTile& found) const;

 private:
  // Returns: the place of a tile. The dense tile's is behind all others.
  int32_t place_of(int32_t tile) const {
    return is_dense(tile)         ? high_tiles_ + low_tiles_
           : row_.read == nullptr ? tile
                                  : row_.read[tile];
  }
  template <class Is>
  bool any(int32_t first, int32_t end, Is&& is) const {
    if (first >= end) {
      return false;
    }
    const int32_t first_place = place_of(first);
    const int32_t end_place = place_of(end - 1) + 1;
    const bool high = first_place < high_tiles_ && is(high_.layout.format);
    const bool low = first_place < high_tiles_ + low_tiles_ && end_place > high_tiles_ &&
                     low_tiles_ > 0 && is(low_.layout.format);
    return high || low;
  }
  const std::byte* page_at(bool is_high, int32_t entry) const;

  const KvPagesView& pages_;
  RowTokens row_;
  const TileShape& high_;
  const TileShape& low_;
  const TileShape& dense_;
  int32_t high_tiles_;
  int32_t low_tiles_;
};

// Prefetches all keys and values of a tile. It serves the first tile of an item.
void fetch_tile(const KvTile& tile);

}  // namespace tessera
