#pragma once

#include "kernels/cuda/pages/token_codec.h"

namespace tessera::cuda {

// Writes a tile of codes or of a sparse format, by one block of kTileWarps warps. Each warp first
// decodes its own tokens of the tile (tokens warp, warp + kTileWarps, ...) into shared memory, from
// which they are written. So the code that writes a format is there once, for every source.

inline constexpr int32_t kTileWarps = 4;
inline constexpr int32_t kTileThreads = kTileWarps * simt::kWarp;
inline constexpr int32_t kTileTokens = KvPageLayout::kKeyTile;

// Shared memory of the block.
struct TileMemory {
  DecodedToken tokens[kTileTokens];
  TokenRanges ranges[kTileTokens];  // of codes
  SparseMemory sparse[kTileWarps];
};

// Calls visit(i) for the warp's own tokens.
template <class Visit>
TESSERA_DEVICE void each_own_token(Visit&& visit) {
  TESSERA_UNROLL_BY(1)
  for (int32_t i = simt::warp(); i < kTileTokens; i += kTileWarps) {
    visit(i);
  }
}

// Finds the code ranges of the warp's own tokens. Requires: the warp has decoded them, and waited.
TESSERA_DEVICE void find_own_ranges(const KvPageLayout& layout, TileMemory& memory) {
  each_own_token([&](int32_t i) {
    const TokenRanges ranges = warp_ranges(layout.format, layout.head_dim, memory.tokens[i]);
    if (simt::lane() == 0) {
      memory.ranges[i] = ranges;
    }
  });
}

// Writes a whole tile of codes. A thread writes whole words, so no two write to one byte.
// Requires: all tokens and ranges are in `memory`, and the block has waited.
TESSERA_DEVICE void put_code_tile(const KvPageLayout& layout, const TokenPlace& to,
                                  const TileMemory& memory) {
  const int32_t self = simt::thread();
  if (self < kTileTokens) {
    put_ranges(layout, {to.page, to.tile, self}, memory.ranges[self]);
  }
  const int32_t key_bits = layout.format.key_bits;
  auto* keys = reinterpret_cast<uint32_t*>(to.page + layout.keys_offset(to.tile));
  TESSERA_UNROLL_BY(1)
  for (int32_t i = self; i < layout.key_tile_bytes() / 4; i += kTileThreads) {
    const int32_t at = i % kTileTokens;
    uint32_t word = 0;
    TESSERA_UNROLL_BY(1)
    for (int32_t part = 0; part < 8 / key_bits; ++part) {
      for (int32_t e = 0; e < 4; ++e) {
        const int32_t channel = 4 * (i / kTileTokens * (8 / key_bits) + part) + e;
        if (channel < layout.head_dim) {
          word |= code_of(memory.tokens[at].keys[channel], memory.ranges[at].key, key_bits)
                  << (8 * e + key_bits * part);
        }
      }
    }
    keys[i] = word;
  }
  const int32_t value_bits = layout.format.value_bits;
  auto* values = reinterpret_cast<uint32_t*>(to.page + layout.values_offset(to.tile));
  TESSERA_UNROLL_BY(1)
  for (int32_t i = self; i < layout.value_tile_bytes() / 4; i += kTileThreads) {
    uint32_t word = 0;
    TESSERA_UNROLL_BY(1)
    for (int32_t part = 0; part < 8 / value_bits; ++part) {
      const int32_t sub_line = i / kTileTokens * (8 / value_bits) + part;
      const int32_t channel = 16 * (sub_line / 4) + i % kTileTokens;
      for (int32_t e = 0; e < 4 && channel < layout.head_dim; ++e) {
        const int32_t at = 4 * (sub_line % 4) + e;
        word |= code_of(memory.tokens[at].values[channel], memory.ranges[at].value, value_bits)
                << (8 * e + value_bits * part);
      }
    }
    values[i] = word;
  }
}

}  // namespace tessera::cuda
