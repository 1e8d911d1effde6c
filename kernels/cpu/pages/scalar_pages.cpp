#include "kernels/cpu/attention/limits.h"
#include "kernels/cpu/pages/page_codec.h"
#include "kernels/cpu/pages/page_ops.h"

namespace tessera::scalar {
namespace {

constexpr int32_t kTile = KvPageLayout::kKeyTile;

void encode_tile(const KvPageLayout& window, const std::byte* from, int64_t from_tile,
                 const KvPageLayout& codes, std::byte* to, int64_t to_tile) {
  float keys[kMaxHeadDim];
  float values[kMaxHeadDim];
  for (int32_t i = 0; i < kTile; ++i) {
    decode_token(window, from, static_cast<int32_t>(from_tile) * kTile + i, keys, values);
    encode_token(codes, keys, values, to, static_cast<int32_t>(to_tile) * kTile + i);
  }
}

}  // namespace

const PageOps kPageOps{encode_token, encode_tile};

}  // namespace tessera::scalar
