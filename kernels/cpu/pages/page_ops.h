#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/pages/sparse_codec.h"
#include "kernels/matrix/half.h"

namespace tessera {

// A tile of kKeyTile tokens in the form of the residual buffer. Not owned.
struct DenseTile {
  const f16* keys = nullptr;    // [head_dim][kKeyTile]
  const f16* values = nullptr;  // [kKeyTile][head_dim]
  int32_t head_dim = 0;
};

// Target of a tile's codes: its parts in a page (kernels/kv/kv_page.h). Not owned.
struct CodeTile {
  std::byte* keys = nullptr;
  f16* key_scales = nullptr;
  f16* key_zeros = nullptr;
  std::byte* values = nullptr;
  f16* value_scales = nullptr;
  f16* value_zeros = nullptr;
  int32_t key_bits = 0;
  int32_t value_bits = 0;
};

// Page ops of an instruction set, for kv_store. kv_store.cpp has the loops over groups, tiles and
// heads and divides them among threads, once for all. Results equal page_codec.h bit for bit.
// Requires (vector versions): head_dim is a multiple of 8.
struct PageOps {
  void (*to_stored_f16)(const float* in, int64_t count, f16* out);
  void (*encode_tile)(const DenseTile& from, const CodeTile& to);
  // As encode_sparse() of sparse_codec.h with null weights. channels: [head_dim] finite f16, as in
  // a dense tile.
  void (*encode_sparse)(const SparseSide& side, const f16* channels, int32_t lane,
                        std::byte* side_bytes, f16* scales);
};

namespace scalar {
void encode_sparse(const SparseSide& side, const f16* channels, int32_t lane, std::byte* side_bytes,
                   f16* scales);
extern const PageOps kPageOps;
}  // namespace scalar
namespace avx2 {
using scalar::encode_sparse;
extern const PageOps kPageOps;
}  // namespace avx2
namespace avx512 {
void encode_sparse(const SparseSide& side, const f16* channels, int32_t lane, std::byte* side_bytes,
                   f16* scales);
extern const PageOps kPageOps;
}  // namespace avx512

}  // namespace tessera
