#pragma once

#include <immintrin.h>

#include <cstdint>

namespace tessera::amx {

inline constexpr int kTileRows = 16;
inline constexpr int kTileRowBytes = 64;

// What the tile registers hold, as the instruction that sets it reads it: 16 rows of 64 bytes each,
// or fewer rows. They are taken for a span and then released, because a thread that has none has
// less state to be saved; to take them for each tile of tokens would cost attention a tenth of its
// time.
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

// A constant, because GCC 12 takes the instruction for one that reads a pointer's size of it.
inline constexpr TileConfig kTileConfig;

}  // namespace tessera::amx
