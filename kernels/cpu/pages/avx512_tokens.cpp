#include <cstdint>

#include "kernels/cpu/pages/page_ops.h"
#include "kernels/cpu/pages/token_ops.h"
#include "kernels/cpu/simd/limits.h"

namespace tessera::avx512 {
namespace {

constexpr int32_t kTile = KvPageLayout::kKeyTile;

// Prunes f16 tokens with vectors, as kv_store does. All else is AVX2's, because it is bound by
// divisions, which are no faster here.
void demote_token(const TileShape& high, TokenPlace from, const TileShape& low, TokenPlace to,
                  const float* key_weights) {
  const KvPageLayout& dense = high.layout;
  const KvPageLayout& sparse = low.layout;
  if (dense.format != kKvF16 || !sparse.format.is_sparse() || key_weights != nullptr) {
    avx2::kTokenOps.demote(high, from, low, to, key_weights);
    return;
  }
  const auto* key = reinterpret_cast<const f16*>(from.page + dense.keys_offset(from.token / kTile) +
                                                 dense.key_offset(from.token % kTile, 0));
  f16 keys[kMaxHeadDim];
  for (int32_t channel = 0; channel < dense.head_dim; ++channel) {
    keys[channel] = key[channel * kTile];
  }
  const auto* values =
      reinterpret_cast<const f16*>(from.page + dense.values_offset(from.token / kTile) +
                                   dense.value_offset(from.token % kTile, 0));
  const int32_t tile = to.token / kTile;
  encode_sparse(sparse_keys(sparse), keys, to.token % kTile, to.page + sparse.keys_offset(tile),
                reinterpret_cast<f16*>(to.page + sparse.key_scales_offset(tile)));
  encode_sparse(sparse_values(sparse), values, to.token % kTile,
                to.page + sparse.values_offset(tile),
                reinterpret_cast<f16*>(to.page + sparse.value_scales_offset(tile)));
}

void copy_tokens(const TileShape& shape, std::span<const TokenMove> moves) {
  avx2::kTokenOps.copy(shape, moves);
}

}  // namespace

const TokenOps kTokenOps{kHeadDimMultiple, copy_tokens, demote_token};

}  // namespace tessera::avx512
