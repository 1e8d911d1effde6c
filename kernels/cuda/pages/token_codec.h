#pragma once

#include "kernels/cuda/pages/format_kind.h"
#include "kernels/cuda/pages/sparse_codec.h"

namespace tessera::cuda {

// Reads and writes tokens and tiles in page layout, by a team of threads. The bytes are those of
// kernels/cpu/pages/page_codec.h.

// Threads of a block or warp that work together.
// Requires: all of them make every call.
struct Team {
  int32_t self;
  int32_t size;
};
TESSERA_DEVICE Team block_team() {
  return {simt::thread(), simt::threads()};
}
TESSERA_DEVICE Team warp_team() {
  return {simt::lane(), simt::kWarp};
}

// Location of a token: a tile of a page, and a lane of the tile.
struct TokenPlace {
  std::byte* page;
  int32_t tile;
  int32_t lane;
};
TESSERA_DEVICE TokenPlace token_place(std::byte* page, int32_t token) {
  return {page, token / KvPageLayout::kKeyTile, token % KvPageLayout::kKeyTile};
}

TESSERA_DEVICE f16& half_at(std::byte* bytes, int64_t offset, int32_t index) {
  return reinterpret_cast<f16*>(bytes + offset)[index];
}

// Reads the key and value of a stored token of any format, channel by channel, as f32. The layout
// and the page are not owned.
class StoredToken {
 public:
  TESSERA_DEVICE StoredToken(const KvPageLayout& layout, const TokenPlace& at)
      : layout_(layout),
        keys_(at.page + layout.keys_offset(at.tile)),
        values_(at.page + layout.values_offset(at.tile)),
        lane_(at.lane) {
    if (layout.format.key_bits <= 8) {
      key_.scale = half_at(at.page, layout.key_scales_offset(at.tile), at.lane);
    }
    if (layout.format.value_bits <= 8) {
      value_.scale = half_at(at.page, layout.value_scales_offset(at.tile), at.lane);
    }
    if (layout.format.is_codes()) {
      key_.zero = half_at(at.page, layout.key_zeros_offset(at.tile), at.lane);
      value_.zero = half_at(at.page, layout.value_zeros_offset(at.tile), at.lane);
    }
  }

  TESSERA_DEVICE float key(int32_t channel) const {
    if (layout_.format.is_sparse()) {
      return sparse_channel(sparse_keys(layout_), keys_, lane_, simt::as_f32(key_.scale), channel);
    }
    return layout_.format.is_codes()
               ? decoded(keys_, layout_.whole_key_place(lane_, channel), layout_.format.key_bits,
                         key_)
               : float_at(keys_ + layout_.key_offset(lane_, channel), layout_.format.key_bits);
  }
  TESSERA_DEVICE float value(int32_t channel) const {
    if (layout_.format.is_sparse()) {
      return sparse_channel(sparse_values(layout_), values_, lane_, simt::as_f32(value_.scale),
                            channel);
    }
    return layout_.format.is_codes() ? decoded(values_, layout_.whole_value_place(lane_, channel),
                                               layout_.format.value_bits, value_)
                                     : float_at(values_ + layout_.value_offset(lane_, channel),
                                                layout_.format.value_bits);
  }

 private:
  // A code times its scale is exact in f32, so a fused sum has the same bits.
  TESSERA_DEVICE static float decoded(const std::byte* tile, KvPageLayout::CodePlace::Part at,
                                      int32_t bits, CodeRange range) {
    const uint32_t code = static_cast<uint32_t>(tile[at.byte]) >> at.shift & ((1u << bits) - 1);
    return simt::as_f32(range.zero) + simt::as_f32(range.scale) * static_cast<float>(code);
  }
  TESSERA_DEVICE static float float_at(const std::byte* at, int32_t bits) {
    return bits == 16 ? simt::as_f32(*reinterpret_cast<const f16*>(at))
                      : *reinterpret_cast<const float*>(at);
  }

  const KvPageLayout& layout_;
  const std::byte* keys_;
  const std::byte* values_;
  int32_t lane_;
  CodeRange key_ = {};
  CodeRange value_ = {};
};

// The key and value of a token as f32, in shared memory: for writers that read channels more than
// once, and in another order. One float more spreads the same channel of neighbours over the banks.
inline constexpr int32_t kMaxDecodedDim = kMaxSparseDim;
struct DecodedToken {
  float keys[kMaxDecodedDim + 1];
  float values[kMaxDecodedDim];

  TESSERA_DEVICE float key(int32_t channel) const { return keys[channel]; }
  TESSERA_DEVICE float value(int32_t channel) const { return values[channel]; }
};

// Decode a stored token, by one warp, which waits before it reads the channels.
// Requires: head_dim <= kMaxDecodedDim.
TESSERA_DEVICE void decode(const StoredToken& token, int32_t head_dim, DecodedToken& to) {
  TESSERA_UNROLL_BY(1)
  for (int32_t c = simt::lane(); c < head_dim; c += simt::kWarp) {
    to.keys[c] = token.key(c);
    to.values[c] = token.value(c);
  }
}
TESSERA_DEVICE void decode(const KvPageLayout& layout, const TokenPlace& at, DecodedToken& to) {
  with_kind(layout, [&](const KvPageLayout& of_kind) {
    decode(StoredToken(of_kind, at), of_kind.head_dim, to);
  });
}

struct TokenRanges {
  CodeRange key;
  CodeRange value;
};

// Returns: code ranges of a token, in every lane.
// Requires: all lanes of the warp call it.
template <class Token>
TESSERA_DEVICE TokenRanges warp_ranges(KvFormat format, int32_t head_dim, const Token& token) {
  const auto range = [&](auto&& channel_at, int32_t bits) {
    float lowest = channel_at(simt::lane() < head_dim ? simt::lane() : 0);
    float highest = lowest;
    for (int32_t c = simt::lane(); c < head_dim; c += simt::kWarp) {
      const float x = channel_at(c);
      lowest = simt::min(lowest, x);
      highest = simt::max(highest, x);
    }
    return code_range(simt::warp_min(lowest), simt::warp_max(highest), bits);
  };
  return {range([&](int32_t c) { return token.key(c); }, format.key_bits),
          range([&](int32_t c) { return token.value(c); }, format.value_bits)};
}

TESSERA_DEVICE void put_ranges(const KvPageLayout& layout, const TokenPlace& to,
                               const TokenRanges& ranges) {
  half_at(to.page, layout.key_scales_offset(to.tile), to.lane) = ranges.key.scale;
  half_at(to.page, layout.key_zeros_offset(to.tile), to.lane) = ranges.key.zero;
  half_at(to.page, layout.value_scales_offset(to.tile), to.lane) = ranges.value.scale;
  half_at(to.page, layout.value_zeros_offset(to.tile), to.lane) = ranges.value.zero;
}

TESSERA_DEVICE void put_code(std::byte* tile, KvPageLayout::CodePlace::Part at, uint32_t code,
                             int32_t bits) {
  const uint32_t mask = ((1u << bits) - 1) << at.shift;
  tile[at.byte] =
      static_cast<std::byte>((static_cast<uint32_t>(tile[at.byte]) & ~mask) | code << at.shift);
}

// Calls visit(channel) for the channels of one thread. Channels whose codes share a byte belong to
// the same thread: in keys channels four apart, in values 16 apart. Neighbouring tokens have the
// same division.
template <class Visit>
TESSERA_DEVICE void each_key_channel(int32_t head_dim, Team team, Visit&& visit) {
  TESSERA_UNROLL_BY(1)
  for (int32_t i = team.self; 4 * i < round_up(head_dim, 16); i += team.size) {
    for (int32_t part = 0; part < 4; ++part) {
      const int32_t channel = 16 * (i / 4) + 4 * part + i % 4;
      if (channel < head_dim) {
        visit(channel);
      }
    }
  }
}
template <class Visit>
TESSERA_DEVICE void each_value_channel(int32_t head_dim, Team team, Visit&& visit) {
  TESSERA_UNROLL_BY(1)
  for (int32_t i = team.self; i < (head_dim + 31) / 32 * 16; i += team.size) {
    for (int32_t channel = 32 * (i / 16) + i % 16; channel <= 32 * (i / 16) + i % 16 + 16;
         channel += 16) {
      if (channel < head_dim) {
        visit(channel);
      }
    }
  }
}

// Writes one token of a float format.
template <class Token>
TESSERA_DEVICE void put_floats(const KvPageLayout& layout, const TokenPlace& to, const Token& token,
                               Team team) {
  std::byte* keys = to.page + layout.keys_offset(to.tile);
  std::byte* values = to.page + layout.values_offset(to.tile);
  TESSERA_UNROLL_BY(1)
  for (int32_t c = team.self; c < layout.head_dim; c += team.size) {
    std::byte* key = keys + layout.key_offset(to.lane, c);
    std::byte* value = values + layout.value_offset(to.lane, c);
    if (layout.format.key_bits == 16) {
      *reinterpret_cast<f16*>(key) = to_stored_f16(token.key(c));
      *reinterpret_cast<f16*>(value) = to_stored_f16(token.value(c));
    } else {
      *reinterpret_cast<float*>(key) = token.key(c);
      *reinterpret_cast<float*>(value) = token.value(c);
    }
  }
}

// Writes one token of codes into a tile that holds others. Tokens with another lane % 4 share no
// byte with it.
template <class Token>
TESSERA_DEVICE void put_codes(const KvPageLayout& layout, const TokenPlace& to, const Token& token,
                              const TokenRanges& ranges, Team team) {
  std::byte* keys = to.page + layout.keys_offset(to.tile);
  std::byte* values = to.page + layout.values_offset(to.tile);
  const KvFormat format = layout.format;
  each_key_channel(layout.head_dim, team, [&](int32_t c) {
    put_code(keys, layout.whole_key_place(to.lane, c),
             code_of(token.key(c), ranges.key, format.key_bits), format.key_bits);
  });
  each_value_channel(layout.head_dim, team, [&](int32_t c) {
    put_code(values, layout.whole_value_place(to.lane, c),
             code_of(token.value(c), ranges.value, format.value_bits), format.value_bits);
  });
  if (team.self == 0) {
    put_ranges(layout, to, ranges);
  }
}

// Writes one token of a sparse format, by one warp. key_weights: [head_dim], factors of a key's
// magnitudes when kept channels are chosen; null: all 1.
TESSERA_DEVICE void put_sparse(const KvPageLayout& layout, const TokenPlace& to,
                               const DecodedToken& token, const float* key_weights,
                               SparseMemory& memory) {
  TESSERA_UNROLL_BY(1)
  for (int32_t i = 0; i < 2; ++i) {
    const bool is_key = i == 0;
    const SparseSide side = is_key ? sparse_keys(layout) : sparse_values(layout);
    const float* channels = is_key ? token.keys : token.values;
    const float* weights = is_key ? key_weights : nullptr;
    const KeptChannels kept = chosen_channels(
        side,
        [&](int32_t c) {
          return simt::abs(channels[c]) * (weights == nullptr ? 1.0f : weights[c]);
        },
        memory);
    put_kept(
        side, kept, to.lane, [&](int32_t c) { return channels[c]; },
        to.page + (is_key ? layout.keys_offset(to.tile) : layout.values_offset(to.tile)),
        reinterpret_cast<f16*>(to.page + (is_key ? layout.key_scales_offset(to.tile)
                                                 : layout.value_scales_offset(to.tile))));
  }
}

// Copies one token of a sparse format unchanged.
TESSERA_DEVICE void copy_sparse(const KvPageLayout& layout, const TokenPlace& from,
                                const TokenPlace& to, Team team) {
  const auto copy = [&](int64_t of_from, int64_t of_to, int64_t bytes) {
    for (int64_t i = team.self; i < bytes; i += team.size) {
      to.page[of_to + i] = from.page[of_from + i];
    }
  };
  const auto copy_side = [&](const SparseSide& side, int64_t of_from, int64_t of_to) {
    copy(of_from + side.kept_offset(from.lane), of_to + side.kept_offset(to.lane), side.kept_bytes);
    copy(of_from + side.bitmap_offset(from.lane), of_to + side.bitmap_offset(to.lane),
         side.bitmap_bytes);
  };
  copy_side(sparse_keys(layout), layout.keys_offset(from.tile), layout.keys_offset(to.tile));
  copy_side(sparse_values(layout), layout.values_offset(from.tile), layout.values_offset(to.tile));
  if (layout.format.key_bits <= 8) {
    copy(layout.key_scales_offset(from.tile) + 2 * from.lane,
         layout.key_scales_offset(to.tile) + 2 * to.lane, 2);
  }
  if (layout.format.value_bits <= 8) {
    copy(layout.value_scales_offset(from.tile) + 2 * from.lane,
         layout.value_scales_offset(to.tile) + 2 * to.lane, 2);
  }
}

// Clears all tokens of a tile of codes, before its first token is written.
TESSERA_DEVICE void clear_tile(const KvPageLayout& layout, const TokenPlace& at, Team team) {
  std::byte* keys = at.page + layout.keys_offset(at.tile);
  std::byte* values = at.page + layout.values_offset(at.tile);
  for (int64_t i = team.self; i < layout.key_tile_bytes(); i += team.size) {
    keys[i] = std::byte{0};
  }
  for (int64_t i = team.self; i < layout.value_tile_bytes(); i += team.size) {
    values[i] = std::byte{0};
  }
  for (int32_t lane = team.self; lane < KvPageLayout::kKeyTile; lane += team.size) {
    put_ranges(layout, {at.page, at.tile, lane}, {});
  }
}

// Requires: `from`, `to` and `bytes` are multiples of 16.
TESSERA_DEVICE void copy_bytes(const void* from, void* to, int64_t bytes, Team team) {
  for (int64_t at = 16 * team.self; at < bytes; at += 16 * team.size) {
    simt::store_words(static_cast<std::byte*>(to) + at,
                      simt::load_words(static_cast<const std::byte*>(from) + at));
  }
}

}  // namespace tessera::cuda
