#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv/kv_page.h"

namespace tessera {

inline constexpr int32_t kKeyTilesInTile = kAttentionTile / KvPageLayout::kKeyTile;

// A layout with the sizes for the address of a tile, computed once for a step.
struct TileShape {
  TileShape() = default;
  explicit TileShape(const KvPageLayout& of)
      : layout(of),
        key_bytes(of.key_tile_bytes()),
        value_bytes(of.value_tile_bytes()),
        values(of.values_offset(0)),
        key_scales(of.key_scales_offset(0)),
        key_zeros(of.key_zeros_offset(0) - key_scales),
        value_scales(of.value_scales_offset(0) - key_scales),
        value_zeros(of.value_zeros_offset(0) - key_scales),
        page_tiles(of.capacity / KvPageLayout::kKeyTile),
        keys_have_zeros(of.key_zero_tile_bytes() > 0),
        values_have_zeros(of.value_zero_tile_bytes() > 0) {}

  KvPageLayout layout;
  int64_t key_bytes = 0;    // keys of a key tile
  int64_t value_bytes = 0;  // values of a key tile
  int64_t values = 0;       // page offset of the first tile's values
  int64_t key_scales = 0;   // page offset of the first tile's key scales
  // Offsets from a tile's key scales to its key zeros, value scales and value zeros.
  int64_t key_zeros = 0;
  int64_t value_scales = 0;
  int64_t value_zeros = 0;
  int32_t page_tiles = 0;
  bool keys_have_zeros = false;  // else a codebook's zero, for codes
  bool values_have_zeros = false;
};

// Addresses of the tokens of one tile in their pages, 16 tokens each. Not owned.
struct KvTile {
  const TileShape* shape;
  const std::byte* keys[kKeyTilesInTile];
  const std::byte* values[kKeyTilesInTile];
  const std::byte* scales[kKeyTilesInTile];  // key scales, [kKeyTile] f16; for codes, also sparse
};

}  // namespace tessera
