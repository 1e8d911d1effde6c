#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/pages/sparse_codec.h"
#include "kernels/half.h"

namespace tessera {

// A tile of kKeyTile tokens in the window's form.
struct DenseTile {
  const f16* keys = nullptr;    // [head_dim][kKeyTile]
  const f16* values = nullptr;  // [kKeyTile][head_dim]
  int32_t head_dim = 0;
};

// Where a tile's codes go: its parts in a page (kernels/kv_page.h).
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

// What an instruction set brings to kv_store; the loops over groups, tiles and heads, and the
// sharing among threads, are written once, in kv_store.cpp. Bit for bit as page_codec.h has it.
// Requires of the vector ones: head_dim is a multiple of 8.
struct PageOps {
  void (*to_stored_f16)(const float* in, int64_t count, f16* out);
  void (*encode_tile)(const DenseTile& from, const CodeTile& to);
  // As that of sparse_codec.h, of channels that are finite f16, as a dense tile has them.
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
