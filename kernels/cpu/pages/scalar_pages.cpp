#include "kernels/cpu/pages/page_codec.h"
#include "kernels/cpu/pages/page_ops.h"
#include "kernels/cpu/simd/limits.h"

namespace tessera::scalar {
namespace {

constexpr int32_t kTile = KvPageLayout::kKeyTile;

void to_stored_f16_row(const float* in, int64_t count, f16* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = to_stored_f16(in[i]);
  }
}

void encode_tile(const DenseTile& from, const CodeTile& to) {
  const KvFormat format{static_cast<uint8_t>(to.key_bits), static_cast<uint8_t>(to.value_bits)};
  const KvPageLayout layout = KvPageLayout::make(format, from.head_dim, kTile);
  float keys[kMaxHeadDim];
  float values[kMaxHeadDim];
  for (int32_t token = 0; token < kTile; ++token) {
    for (int32_t c = 0; c < from.head_dim; ++c) {
      keys[c] = to_f32(from.keys[c * kTile + token]);
      values[c] = to_f32(from.values[token * from.head_dim + c]);
    }
    encode_in_tile(layout, to, token, keys, values);
  }
}

}  // namespace

void encode_sparse(const SparseSide& side, const f16* channels, int32_t lane, std::byte* side_bytes,
                   f16* scales) {
  float floats[kMaxHeadDim];
  for (int32_t c = 0; c < side.head_dim; ++c) {
    floats[c] = to_f32(channels[c]);
  }
  tessera::encode_sparse(side, floats, nullptr, lane, side_bytes, scales);
}

const PageOps kPageOps{to_stored_f16_row, encode_tile, encode_sparse};

}  // namespace tessera::scalar
