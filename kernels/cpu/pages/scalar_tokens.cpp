#include <cstring>

#include "kernels/cpu/pages/page_codec.h"
#include "kernels/cpu/pages/sparse_codec.h"
#include "kernels/cpu/pages/token_ops.h"
#include "kernels/cpu/simd/limits.h"
#include "kernels/matrix/e4m3.h"

namespace tessera::scalar {
namespace {

constexpr int32_t kTile = KvPageLayout::kKeyTile;

// A key of codes occupies the same 4 bytes of every line, at any number of bits.
void copy_key_codes(const KvPageLayout& layout, const std::byte* from, int32_t from_token,
                    std::byte* to, int32_t to_token) {
  const int64_t bytes = layout.key_tile_bytes();
  for (int64_t line = 0; line < bytes; line += KvPageLayout::kLineBytes) {
    std::memcpy(to + line + 4 * to_token, from + line + 4 * from_token, 4);
  }
}

// A value of codes occupies the same bits in each lane of a line (3 bits: of two lines) for every
// 16 channels.
void copy_value_codes(const KvPageLayout& layout, const std::byte* from, int32_t from_token,
                      std::byte* to, int32_t to_token) {
  for (int32_t channel = 0; channel < layout.head_dim; channel += 16) {
    const KvPageLayout::CodePlace source = layout.value_place(from_token, channel);
    const KvPageLayout::CodePlace target = layout.value_place(to_token, channel);
    for (int32_t lane = 0; lane < 64; lane += 4) {
      target.store(source.load(from + lane), to + lane);
    }
  }
}

void copy_sparse_side(const SparseSide& side, const std::byte* from, int32_t from_lane,
                      std::byte* to, int32_t to_lane) {
  std::memcpy(to + side.kept_offset(to_lane), from + side.kept_offset(from_lane),
              static_cast<size_t>(side.kept_bytes));
  std::memcpy(to + side.bitmap_offset(to_lane), from + side.bitmap_offset(from_lane),
              static_cast<size_t>(side.bitmap_bytes));
}

void copy_sparse(const KvPageLayout& layout, TokenPlace from, TokenPlace to) {
  const int32_t from_tile = from.token / kTile;
  const int32_t to_tile = to.token / kTile;
  const int32_t from_lane = from.token % kTile;
  const int32_t to_lane = to.token % kTile;
  copy_sparse_side(sparse_keys(layout), from.page + layout.keys_offset(from_tile), from_lane,
                   to.page + layout.keys_offset(to_tile), to_lane);
  copy_sparse_side(sparse_values(layout), from.page + layout.values_offset(from_tile), from_lane,
                   to.page + layout.values_offset(to_tile), to_lane);
  if (sparse_keys(layout).is_codes()) {
    std::memcpy(to.page + layout.key_scales_offset(to_tile) + 2 * to_lane,
                from.page + layout.key_scales_offset(from_tile) + 2 * from_lane, sizeof(f16));
  }
  if (sparse_values(layout).is_codes()) {
    std::memcpy(to.page + layout.value_scales_offset(to_tile) + 2 * to_lane,
                from.page + layout.value_scales_offset(from_tile) + 2 * from_lane, sizeof(f16));
  }
}

// Channel by channel, in the order of the lines in memory.
template <class T>
void copy_float_keys(const KvPageLayout& layout, std::span<const TokenMove> moves) {
  const auto key_of = [&](TokenPlace place) {
    return place.page + layout.keys_offset(place.token / kTile) +
           layout.key_offset(place.token % kTile, 0);
  };
  const std::byte* from[kMaxMoves];
  std::byte* to[kMaxMoves];
  for (size_t i = 0; i < moves.size(); ++i) {
    from[i] = key_of(moves[i].from);
    to[i] = key_of(moves[i].to);
  }
  for (int32_t channel = 0; channel < layout.head_dim; ++channel) {
    const int64_t line = layout.key_offset(0, channel);
    for (size_t i = 0; i < moves.size(); ++i) {
      std::memcpy(to[i] + line, from[i] + line, sizeof(T));
    }
  }
}

void copy_floats(const KvPageLayout& layout, std::span<const TokenMove> moves) {
  switch (layout.format.key_bits) {
    case 8:
      copy_float_keys<e4m3>(layout, moves);
      break;
    case 16:
      copy_float_keys<f16>(layout, moves);
      break;
    default:
      copy_float_keys<float>(layout, moves);
  }
  const auto value_of = [&](TokenPlace place) {
    return place.page + layout.values_offset(place.token / kTile) +
           layout.value_offset(place.token % kTile, 0);
  };
  for (const TokenMove& move : moves) {
    std::memcpy(value_of(move.to), value_of(move.from),
                static_cast<size_t>(layout.head_dim * layout.format.value_bits / 8));
  }
}

void copy_codes(const KvPageLayout& layout, TokenPlace from, TokenPlace to) {
  const int64_t from_tile = from.token / kTile;
  const int64_t to_tile = to.token / kTile;
  const int32_t from_lane = from.token % kTile;
  const int32_t to_lane = to.token % kTile;
  copy_key_codes(layout, from.page + layout.keys_offset(from_tile), from_lane,
                 to.page + layout.keys_offset(to_tile), to_lane);
  copy_value_codes(layout, from.page + layout.values_offset(from_tile), from_lane,
                   to.page + layout.values_offset(to_tile), to_lane);
  const auto copy_f16 = [&](int64_t from_offset, int64_t to_offset) {
    std::memcpy(to.page + to_offset + 2 * to_lane, from.page + from_offset + 2 * from_lane, 2);
  };
  copy_f16(layout.key_scales_offset(from_tile), layout.key_scales_offset(to_tile));
  copy_f16(layout.value_scales_offset(from_tile), layout.value_scales_offset(to_tile));
  if (!has_codebook(layout.format.key_bits)) {
    copy_f16(layout.key_zeros_offset(from_tile), layout.key_zeros_offset(to_tile));
  }
  if (!has_codebook(layout.format.value_bits)) {
    copy_f16(layout.value_zeros_offset(from_tile), layout.value_zeros_offset(to_tile));
  }
}

void copy_tokens(const TileShape& shape, std::span<const TokenMove> moves) {
  const KvPageLayout& layout = shape.layout;
  if (layout.format.is_floats()) {
    copy_floats(layout, moves);
    return;
  }
  for (const TokenMove& move : moves) {
    if (layout.format.is_sparse()) {
      copy_sparse(layout, move.from, move.to);
    } else {
      copy_codes(layout, move.from, move.to);
    }
  }
}

void demote_token(const TileShape& high, TokenPlace from, const TileShape& low, TokenPlace to,
                  const float* key_weights) {
  float keys[kMaxHeadDim];
  float values[kMaxHeadDim];
  decode_token(high.layout, from.page, from.token, keys, values);
  if (key_weights != nullptr && low.layout.format.is_sparse()) {
    encode_sparse_token(low.layout, keys, key_weights, values, to.page, to.token);
    return;
  }
  encode_token(low.layout, keys, values, to.page, to.token);
}

}  // namespace

const TokenOps kTokenOps{1, copy_tokens, demote_token};

}  // namespace tessera::scalar
