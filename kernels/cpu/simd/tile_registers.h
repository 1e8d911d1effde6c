#pragma once

#include <immintrin.h>

#include <cstdint>

namespace tessera::amx {

inline constexpr int kTileRows = 16;
inline constexpr int kTileRowBytes = 64;

// Configuration of the tile registers, in the form that the instruction reads: 16 rows of 64 bytes
// each, or fewer rows. It is loaded for a run of tiles and then released, because a thread without
// tile registers has less state to save. Loading it for each tile of tokens would cost attention a
// tenth of its time.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  constexpr TileConfig() {
    for (int i = 0; i < 8; ++i) {
      row_bytes[i] = kTileRowBytes;
      rows[i] = kTileRows;
    }
  }
};
static_assert(sizeof(TileConfig) == 64);

// A constant, because GCC 12 assumes that the instruction reads only as many bytes as a pointer
// has.
inline constexpr TileConfig kTileConfig;

}  // namespace tessera::amx
