#include "kernels/cpu/compress/token_demotion.h"

#include <algorithm>
#include <cstring>

#include "kernels/check.h"
#include "kernels/cpu/attention/limits.h"
#include "kernels/cpu/pages/page_codec.h"
#include "kernels/cpu/pages/sparse_codec.h"

namespace tessera {
namespace {

constexpr int32_t kTile = KvPageLayout::kKeyTile;
constexpr int32_t kBlock =
    16;  // channels that a loop of known length serves, so that it becomes vectors

// The channels of a key or a value, in whole blocks.
struct Channels {
  alignas(64) float numbers[kMaxHeadDim];
  alignas(64) uint8_t codes[kMaxHeadDim];
};

struct Range {
  float scale;
  float zero;
};

float half_at(const std::byte* at) {
  f16 half;
  std::memcpy(&half, at, sizeof(half));
  return to_f32(half);
}

// Where the codes of a token are: `visit(channel, byte, shift)` for every 4 (keys) or 16 (values)
// neighbouring channels, whose bytes follow each other (are 4 apart).
template <class Visit>
void each_key_place(const KvPageLayout& layout, int32_t lane, Visit&& visit) {
  for (int32_t channel = 0; channel < layout.head_dim; channel += 4) {
    const KvPageLayout::CodePlace place = layout.key_place(lane, channel);
    visit(channel, place.byte, place.shift);
  }
}
template <class Visit>
void each_value_place(const KvPageLayout& layout, int32_t lane, Visit&& visit) {
  for (int32_t channel = 0; channel < layout.head_dim; channel += kBlock) {
    const KvPageLayout::CodePlace place = layout.value_place(lane, channel);
    visit(channel, place.byte, place.shift);
  }
}

void decode(const Range& range, int32_t head_dim, Channels& out) {
  for (int32_t block = 0; block < head_dim; block += kBlock) {
    for (int32_t i = block; i < block + kBlock; ++i) {
      out.numbers[i] = range.zero + range.scale * static_cast<float>(out.codes[i]);
    }
  }
}

// As code_range and code_of say: clamping before rounding is the same, since both bounds are whole,
// and adding 1.5 * 2^23 rounds to nearest even.
void encode(int32_t head_dim, int32_t bits, Channels& channels, f16* scale, f16* zero) {
  const auto [lowest, highest] = std::minmax_element(channels.numbers, channels.numbers + head_dim);
  const CodeRange range = code_range(*lowest, *highest, bits);
  *scale = range.scale;
  *zero = range.zero;
  const Range floats{to_f32(range.scale), to_f32(range.zero)};
  if (!(floats.scale > 0)) {
    std::fill_n(channels.codes, head_dim, uint8_t{0});
    return;
  }
  const float last = static_cast<float>((1 << bits) - 1);
  for (int32_t block = 0; block < head_dim; block += kBlock) {
    float rounded[kBlock];
    for (int32_t i = 0; i < kBlock; ++i) {
      float code = (channels.numbers[block + i] - floats.zero) / floats.scale;
      code = code > 0 ? code : 0;
      code = code < last ? code : last;
      rounded[i] = (code + 0x1.8p23f) - 0x1.8p23f;
    }
    for (int32_t i = 0; i < kBlock; ++i) {
      channels.codes[block + i] = static_cast<uint8_t>(static_cast<int32_t>(rounded[i]));
    }
  }
}

void put_bits(std::byte& byte, uint32_t code, int32_t shift, uint32_t ones) {
  byte =
      static_cast<std::byte>((std::to_integer<uint32_t>(byte) & ~(ones << shift)) | code << shift);
}

void load_codes(const KvPageLayout& layout, TokenPlace from, Channels& keys, Channels& values) {
  const int32_t tile = from.token / kTile;
  const int32_t lane = from.token % kTile;
  const uint32_t key_ones = (1u << layout.format.key_bits) - 1;
  const std::byte* key_lines = from.page + layout.keys_offset(tile);
  each_key_place(layout, lane, [&](int32_t channel, int64_t byte, int32_t shift) {
    for (int32_t i = 0; i < 4; ++i) {
      keys.codes[channel + i] =
          static_cast<uint8_t>(std::to_integer<uint32_t>(key_lines[byte + i]) >> shift & key_ones);
    }
  });
  const uint32_t value_ones = (1u << layout.format.value_bits) - 1;
  const std::byte* value_lines = from.page + layout.values_offset(tile);
  each_value_place(layout, lane, [&](int32_t channel, int64_t byte, int32_t shift) {
    for (int32_t i = 0; i < kBlock; ++i) {
      values.codes[channel + i] = static_cast<uint8_t>(
          std::to_integer<uint32_t>(value_lines[byte + 4 * i]) >> shift & value_ones);
    }
  });
  decode({half_at(from.page + layout.key_scales_offset(tile) + 2 * lane),
          half_at(from.page + layout.key_zeros_offset(tile) + 2 * lane)},
         layout.head_dim, keys);
  decode({half_at(from.page + layout.value_scales_offset(tile) + 2 * lane),
          half_at(from.page + layout.value_zeros_offset(tile) + 2 * lane)},
         layout.head_dim, values);
}

// The codes of channels beyond head_dim, and of tokens behind this one, are 0.
void clear_tile(const KvPageLayout& layout, int32_t tile, std::byte* page) {
  const auto clear = [&](int64_t offset, int64_t bytes) {
    std::memset(page + offset, 0, static_cast<size_t>(bytes));
  };
  clear(layout.keys_offset(tile), layout.key_tile_bytes());
  clear(layout.key_scales_offset(tile), layout.key_scale_tile_bytes());
  clear(layout.key_zeros_offset(tile), layout.zero_tile_bytes());
  clear(layout.values_offset(tile), layout.value_tile_bytes());
  clear(layout.value_scales_offset(tile), layout.value_scale_tile_bytes());
  clear(layout.value_zeros_offset(tile), layout.zero_tile_bytes());
}

void store_codes(const KvPageLayout& layout, Channels& keys, Channels& values, TokenPlace to) {
  const int32_t tile = to.token / kTile;
  const int32_t lane = to.token % kTile;
  if (lane == 0) {
    clear_tile(layout, tile, to.page);
  }
  const auto half = [&](int64_t offset) { return reinterpret_cast<f16*>(to.page + offset) + lane; };
  encode(layout.head_dim, layout.format.key_bits, keys, half(layout.key_scales_offset(tile)),
         half(layout.key_zeros_offset(tile)));
  encode(layout.head_dim, layout.format.value_bits, values, half(layout.value_scales_offset(tile)),
         half(layout.value_zeros_offset(tile)));
  const uint32_t key_ones = (1u << layout.format.key_bits) - 1;
  std::byte* key_lines = to.page + layout.keys_offset(tile);
  each_key_place(layout, lane, [&](int32_t channel, int64_t byte, int32_t shift) {
    for (int32_t i = 0; i < std::min(4, layout.head_dim - channel); ++i) {
      put_bits(key_lines[byte + i], keys.codes[channel + i], shift, key_ones);
    }
  });
  const uint32_t value_ones = (1u << layout.format.value_bits) - 1;
  std::byte* value_lines = to.page + layout.values_offset(tile);
  each_value_place(layout, lane, [&](int32_t channel, int64_t byte, int32_t shift) {
    for (int32_t i = 0; i < std::min(kBlock, layout.head_dim - channel); ++i) {
      put_bits(value_lines[byte + 4 * i], values.codes[channel + i], shift, value_ones);
    }
  });
}

}  // namespace

void demote_token(const KvPageLayout& high, TokenPlace from, const KvPageLayout& low,
                  TokenPlace to) {
  TESSERA_CHECK(!low.format.is_floats(), "kv_compress: a low tier of floats");
  Channels keys;
  Channels values;
  if (high.format.is_codes()) {
    load_codes(high, from, keys, values);
  } else {
    decode_token(high, from.page, from.token, keys.numbers, values.numbers);
  }
  if (low.format.is_sparse()) {
    encode_sparse_token(low, keys.numbers, values.numbers, to.page, to.token);
  } else {
    store_codes(low, keys, values, to);
  }
}

}  // namespace tessera
