#pragma once

#include <cstdint>

#include "kernels/kv/kv_page.h"

namespace tessera {

// Layout of the keys, or the values, in a tile of a sparse format.
struct SparseSide {
  int32_t head_dim = 0;
  int32_t kept = 0;          // channels of a token
  int32_t bits = 0;          // of a kept channel: 16 (f16) or 4 (codes)
  int64_t kept_bytes = 0;    // of a token
  int64_t bitmap_bytes = 0;  // of a token; 0: every channel is kept

  // Byte offsets from the tile's keys (values) to those of a token.
  constexpr int64_t kept_offset(int32_t lane) const { return lane * kept_bytes; }
  constexpr int64_t bitmap_offset(int32_t lane) const {
    return KvPageLayout::kKeyTile * kept_bytes + lane * bitmap_bytes;
  }
  constexpr bool is_codes() const { return bits <= 8; }
};

constexpr SparseSide sparse_keys(const KvPageLayout& layout) {
  return {layout.head_dim, layout.format.kept_keys(layout.head_dim), layout.format.key_bits,
          layout.kept_key_bytes(), layout.key_bitmap_bytes()};
}
constexpr SparseSide sparse_values(const KvPageLayout& layout) {
  return {layout.head_dim, layout.format.kept_values(layout.head_dim), layout.format.value_bits,
          layout.kept_value_bytes(), layout.value_bitmap_bytes()};
}

// Largest code with this number of bits. Codes are symmetric, x ~ code * scale. So a channel that
// is not kept is the code 0 and needs no correction.
constexpr int32_t largest_sparse_code(int32_t bits) {
  return (1 << (bits - 1)) - 1;
}

}  // namespace tessera
