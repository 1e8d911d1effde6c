#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/half.h"
#include "kernels/kv_page.h"

namespace tessera {

// Layout of the keys, or the values, in a tile of a sparse format (kernels/kv_page.h).
struct SparseSide {
  int32_t head_dim = 0;
  int32_t kept = 0;          // channels of a token
  int32_t bits = 0;          // of a kept channel: 16 (f16), or 8 or 4 (codes)
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

// Encodes or decodes one token's key (or value) of one KV head. Plain and slow: the oracle of the
// vector code. Keeps the `kept` channels of largest magnitude; among equal ones, those of lower
// index, so their count is exact.
// Codes: scale is the f16 nearest to (largest kept magnitude) / largest code. code = round(x /
// scale), to nearest even, by a division; 0 if scale is 0.
// channels: [head_dim].
// weights: [head_dim], not negative, or null for 1. Magnitudes are multiplied by them in f32 before
// they are compared (KvKeyScore::output_aware).
// side_bytes: the tile's keys (values).
// scales: [kKeyTile], of the tile's tokens; not read or written for f16.
void encode_sparse(const SparseSide& side, const float* channels, const float* weights,
                   int32_t lane, std::byte* side_bytes, f16* scales);
void decode_sparse(const SparseSide& side, const std::byte* side_bytes, const f16* scales,
                   int32_t lane, float* channels);

// Encodes or decodes one token of a page of a sparse format. Other tokens are not touched.
// key_weights: for its key, or null.
void encode_sparse_token(const KvPageLayout& layout, const float* keys, const float* key_weights,
                         const float* values, std::byte* page, int32_t token);
void decode_sparse_token(const KvPageLayout& layout, const std::byte* page, int32_t token,
                         float* keys, float* values);

}  // namespace tessera
