#include "kernels/cpu/pages/sparse_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <type_traits>

#include "kernels/cpu/pages/page_codec.h"
#include "kernels/cpu/simd/limits.h"

namespace tessera {
namespace {

constexpr int32_t kTile = KvPageLayout::kKeyTile;

// Selects the kept channels.
void choose(const SparseSide& side, const float* channels, const float* weights, bool* kept) {
  float scores[kMaxHeadDim];
  for (int32_t c = 0; c < side.head_dim; ++c) {
    scores[c] = std::abs(channels[c]) * (weights == nullptr ? 1.0f : weights[c]);
  }
  float ranked[kMaxHeadDim];
  float* const end = std::copy_n(scores, side.head_dim, ranked);
  std::nth_element(ranked, ranked + side.kept - 1, end, std::greater<>());
  const float min = ranked[side.kept - 1];
  int64_t ties = side.kept - std::count_if(ranked, end, [&](float score) { return score > min; });
  for (int32_t c = 0; c < side.head_dim; ++c) {
    kept[c] = scores[c] > min || (scores[c] == min && ties-- > 0);
  }
}

f16 scale_of(const SparseSide& side, const float* channels, const bool* kept) {
  float largest = 0;
  for (int32_t c = 0; c < side.head_dim; ++c) {
    largest = kept[c] ? std::max(largest, std::abs(channels[c])) : largest;
  }
  return to_stored_f16(largest / static_cast<float>(largest_sparse_code(side.bits)));
}

int32_t code_of(float x, float scale, int32_t bits) {
  const auto last = static_cast<float>(largest_sparse_code(bits));
  return scale > 0 ? static_cast<int32_t>(std::clamp(std::nearbyint(x / scale), -last, last)) : 0;
}

// Kept channel `i` of a token whose kept channels begin at `kept`.
void put_code(int32_t code, int32_t i, std::byte* kept) {
  kept[i / 2] |= static_cast<std::byte>((code & 15) << i % 2 * 4);
}
int32_t code_at(const std::byte* kept, int32_t i) {
  const int32_t code = std::to_integer<int32_t>(kept[i / 2]) >> i % 2 * 4 & 15;
  return code < 8 ? code : code - 16;
}

// Scales of a tile. A side of f16 has none.
template <class Byte>
auto key_scales(const KvPageLayout& layout, Byte* page, int32_t tile) {
  using Half = std::conditional_t<std::is_const_v<Byte>, const f16, f16>;
  return reinterpret_cast<Half*>(page + layout.key_scales_offset(tile));
}
template <class Byte>
auto value_scales(const KvPageLayout& layout, Byte* page, int32_t tile) {
  using Half = std::conditional_t<std::is_const_v<Byte>, const f16, f16>;
  return reinterpret_cast<Half*>(page + layout.value_scales_offset(tile));
}

}  // namespace

void encode_sparse(const SparseSide& side, const float* channels, const float* weights,
                   int32_t lane, std::byte* side_bytes, f16* scales) {
  bool kept[kMaxHeadDim];
  choose(side, channels, weights, kept);
  std::byte* bytes = side_bytes + side.kept_offset(lane);
  std::byte* bitmap = side_bytes + side.bitmap_offset(lane);
  std::memset(bytes, 0, static_cast<size_t>(side.kept_bytes));
  std::memset(bitmap, 0, static_cast<size_t>(side.bitmap_bytes));
  float scale = 1;
  if (side.is_codes()) {
    scales[lane] = scale_of(side, channels, kept);
    scale = to_f32(scales[lane]);
  }
  for (int32_t c = 0, i = 0; c < side.head_dim; ++c) {
    if (!kept[c]) {
      continue;
    }
    if (side.bitmap_bytes > 0) {
      bitmap[c / 8] |= static_cast<std::byte>(1 << c % 8);
    }
    if (side.is_codes()) {
      put_code(code_of(channels[c], scale, side.bits), i++, bytes);
    } else {
      const f16 half = to_stored_f16(channels[c]);
      std::memcpy(bytes + 2 * i++, &half, sizeof(half));
    }
  }
}

void decode_sparse(const SparseSide& side, const std::byte* side_bytes, const f16* scales,
                   int32_t lane, float* channels) {
  const std::byte* bytes = side_bytes + side.kept_offset(lane);
  const std::byte* bitmap = side_bytes + side.bitmap_offset(lane);
  for (int32_t c = 0, i = 0; c < side.head_dim; ++c) {
    channels[c] = 0;
    if (side.bitmap_bytes > 0 && (bitmap[c / 8] >> c % 8 & std::byte{1}) == std::byte{0}) {
      continue;
    }
    if (side.is_codes()) {
      channels[c] = static_cast<float>(code_at(bytes, i++)) * to_f32(scales[lane]);
    } else {
      f16 half;
      std::memcpy(&half, bytes + 2 * i++, sizeof(half));
      channels[c] = to_f32(half);
    }
  }
}

void encode_sparse_token(const KvPageLayout& layout, const float* keys, const float* key_weights,
                         const float* values, std::byte* page, int32_t token) {
  const int32_t tile = token / kTile;
  encode_sparse(sparse_keys(layout), keys, key_weights, token % kTile,
                page + layout.keys_offset(tile), key_scales(layout, page, tile));
  encode_sparse(sparse_values(layout), values, nullptr, token % kTile,
                page + layout.values_offset(tile), value_scales(layout, page, tile));
}

void decode_sparse_token(const KvPageLayout& layout, const std::byte* page, int32_t token,
                         float* keys, float* values) {
  const int32_t tile = token / kTile;
  decode_sparse(sparse_keys(layout), page + layout.keys_offset(tile),
                key_scales(layout, page, tile), token % kTile, keys);
  decode_sparse(sparse_values(layout), page + layout.values_offset(tile),
                value_scales(layout, page, tile), token % kTile, values);
}

}  // namespace tessera
