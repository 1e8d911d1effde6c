#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv/kv_page.h"
#include "kernels/kv/sparse_layout.h"
#include "kernels/matrix/half.h"

namespace tessera {

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
