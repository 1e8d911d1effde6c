#include "kernels/cpu/pages/page_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/pages/sparse_codec.h"
#include "kernels/cpu/simd/limits.h"
#include "kernels/kv/codebook_codes.h"
#include "kernels/kv/rotation.h"
#include "kernels/matrix/e4m3.h"

namespace tessera {
namespace {

constexpr int32_t kTile = KvPageLayout::kKeyTile;
using Codebook = CodebookCodes<KvPageLayout>;

template <class T>
void store(T value, std::byte* to) {
  std::memcpy(to, &value, sizeof(T));
}

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

void store_float(float value, int32_t bits, std::byte* to) {
  if (bits == 8) {
    store(to_e4m3(to_f32(to_stored_f16(value))), to);
  } else if (bits == 16) {
    store(to_stored_f16(value), to);
  } else {
    store(value, to);
  }
}

float load_float(int32_t bits, const std::byte* from) {
  return bits == 8    ? to_f32(load<e4m3>(from))
         : bits == 16 ? to_f32(load<f16>(from))
                      : load<float>(from);
}

CodeRange range_of(const float* channels, int32_t head_dim, int32_t bits) {
  const auto [lowest, highest] = std::minmax_element(channels, channels + head_dim);
  return code_range(*lowest, *highest, bits);
}

// Encodes one side of a token. zeros: null for codes of a codebook.
template <class PlaceOf>
void encode_side(const float* channels, int32_t head_dim, int32_t bits, f16* scale, f16* zero,
                 std::byte* lines, PlaceOf&& place_of) {
  if (has_codebook(bits)) {
    uint8_t codes[kMaxHeadDim];
    *scale = to_stored_f16(Codebook::scale(channels, head_dim));
    Codebook::encode(channels, head_dim, to_f32(*scale), codes);
    for (int32_t c = 0; c < head_dim; ++c) {
      place_of(c).store(codes[c], lines);
    }
    return;
  }
  const CodeRange range = range_of(channels, head_dim, bits);
  *scale = range.scale;
  *zero = range.zero;
  for (int32_t c = 0; c < head_dim; ++c) {
    place_of(c).store(code_of(channels[c], range, bits), lines);
  }
}

template <class PlaceOf>
void decode_side(const std::byte* lines, const f16* scale, const f16* zero, int32_t bits,
                 int32_t head_dim, PlaceOf&& place_of, float* channels) {
  const float step = to_f32(*scale);
  const float lowest = has_codebook(bits) ? -step * kCodebookZero : to_f32(*zero);
  for (int32_t c = 0; c < head_dim; ++c) {
    const int32_t multiplier = multiplier_of(place_of(c).load(lines), bits);
    channels[c] = lowest + step * static_cast<float>(multiplier);
  }
}

const f16* half_at(const std::byte* page, int64_t offset, int32_t token) {
  return reinterpret_cast<const f16*>(page + offset) + token;
}

void encode_floats(const KvPageLayout& layout, const float* keys, const float* values,
                   std::byte* page, int32_t token) {
  std::byte* tile_keys = page + layout.keys_offset(token / kTile);
  std::byte* tile_values = page + layout.values_offset(token / kTile);
  for (int32_t c = 0; c < layout.head_dim; ++c) {
    store_float(keys[c], layout.format.key_bits, tile_keys + layout.key_offset(token % kTile, c));
    store_float(values[c], layout.format.value_bits,
                tile_values + layout.value_offset(token % kTile, c));
  }
}

void decode_value(const KvPageLayout& layout, const std::byte* page, int32_t token, float* value) {
  const int64_t tile = token / kTile;
  const int32_t lane = token % kTile;
  const std::byte* values = page + layout.values_offset(tile);
  if (layout.format.is_floats()) {
    for (int32_t c = 0; c < layout.head_dim; ++c) {
      value[c] = load_float(layout.format.value_bits, values + layout.value_offset(lane, c));
    }
    return;
  }
  decode_side(
      values, half_at(page, layout.value_scales_offset(tile), lane),
      half_at(page, layout.value_zeros_offset(tile), lane), layout.format.value_bits,
      layout.head_dim, [&](int32_t c) { return layout.value_place(lane, c); }, value);
  if (layout.format.rotated) {
    rotate(value, layout.head_dim);
  }
}

}  // namespace

f16 to_stored_f16(float value) {
  return to_f16(value < kLargestF16 ? std::max(value, -kLargestF16) : kLargestF16);
}

CodeRange code_range(float lowest, float highest, int32_t bits) {
  // -0 is stored as +0.
  const f16 zero = to_stored_f16(lowest + 0.0f);
  const float step = (highest - to_f32(zero)) / static_cast<float>((1 << bits) - 1);
  return {to_stored_f16(step > 0 ? step : 0.0f), zero};
}

uint32_t code_of(float x, CodeRange range, int32_t bits) {
  const float scale = to_f32(range.scale);
  if (!(scale > 0)) {
    return 0;
  }
  const float code = std::nearbyint((x - to_f32(range.zero)) / scale);
  return static_cast<uint32_t>(std::clamp(code, 0.0f, static_cast<float>((1 << bits) - 1)));
}

CodeTile code_tile(const KvPageLayout& layout, std::byte* page, int64_t tile) {
  const auto halves = [page](int64_t offset) { return reinterpret_cast<f16*>(page + offset); };
  const KvFormat format = layout.format;
  return {
      .keys = page + layout.keys_offset(tile),
      .key_scales = halves(layout.key_scales_offset(tile)),
      .key_zeros = has_codebook(format.key_bits) ? nullptr : halves(layout.key_zeros_offset(tile)),
      .values = page + layout.values_offset(tile),
      .value_scales = halves(layout.value_scales_offset(tile)),
      .value_zeros =
          has_codebook(format.value_bits) ? nullptr : halves(layout.value_zeros_offset(tile)),
      .key_bits = format.key_bits,
      .value_bits = format.value_bits};
}

void clear_tile(const KvPageLayout& layout, const CodeTile& tile) {
  std::memset(tile.keys, 0, static_cast<size_t>(layout.key_tile_bytes()));
  std::memset(tile.values, 0, static_cast<size_t>(layout.value_tile_bytes()));
  for (f16* of_tokens : {tile.key_scales, tile.key_zeros, tile.value_scales, tile.value_zeros}) {
    if (of_tokens != nullptr) {
      std::fill_n(of_tokens, kTile, f16{});
    }
  }
}

void encode_in_tile(const KvPageLayout& layout, const CodeTile& tile, int32_t token,
                    const float* keys, const float* values) {
  if (token == 0) {
    clear_tile(layout, tile);
  }
  const auto own = [token](f16* of_tokens) {
    return of_tokens == nullptr ? nullptr : of_tokens + token;
  };
  encode_side(keys, layout.head_dim, tile.key_bits, own(tile.key_scales), own(tile.key_zeros),
              tile.keys, [&](int32_t c) { return layout.key_place(token, c); });
  encode_side(values, layout.head_dim, tile.value_bits, own(tile.value_scales),
              own(tile.value_zeros), tile.values,
              [&](int32_t c) { return layout.value_place(token, c); });
}

void encode_token(const KvPageLayout& layout, const float* keys, const float* values,
                  std::byte* page, int32_t token) {
  if (layout.format.is_sparse()) {
    encode_sparse_token(layout, keys, nullptr, values, page, token);
  } else if (layout.format.rotated) {
    float rotated_keys[kMaxHeadDim];
    float rotated_values[kMaxHeadDim];
    std::copy_n(keys, layout.head_dim, rotated_keys);
    std::copy_n(values, layout.head_dim, rotated_values);
    rotate(rotated_keys, layout.head_dim);
    rotate(rotated_values, layout.head_dim);
    encode_in_tile(layout, code_tile(layout, page, token / kTile), token % kTile, rotated_keys,
                   rotated_values);
  } else if (layout.format.is_codes()) {
    encode_in_tile(layout, code_tile(layout, page, token / kTile), token % kTile, keys, values);
  } else {
    encode_floats(layout, keys, values, page, token);
  }
}

void decode_key(const KvPageLayout& layout, const std::byte* page, int32_t token, float* key) {
  const int64_t tile = token / kTile;
  const int32_t lane = token % kTile;
  const std::byte* keys = page + layout.keys_offset(tile);
  if (layout.format.is_sparse()) {
    decode_sparse(sparse_keys(layout), keys, half_at(page, layout.key_scales_offset(tile), 0), lane,
                  key);
    return;
  }
  if (layout.format.is_floats()) {
    for (int32_t c = 0; c < layout.head_dim; ++c) {
      key[c] = load_float(layout.format.key_bits, keys + layout.key_offset(lane, c));
    }
    return;
  }
  decode_side(
      keys, half_at(page, layout.key_scales_offset(tile), lane),
      half_at(page, layout.key_zeros_offset(tile), lane), layout.format.key_bits, layout.head_dim,
      [&](int32_t c) { return layout.key_place(lane, c); }, key);
  if (layout.format.rotated) {
    rotate(key, layout.head_dim);
  }
}

void decode_token(const KvPageLayout& layout, const std::byte* page, int32_t token, float* keys,
                  float* values) {
  if (layout.format.is_sparse()) {
    decode_sparse_token(layout, page, token, keys, values);
    return;
  }
  decode_key(layout, page, token, keys);
  decode_value(layout, page, token, values);
}

}  // namespace tessera
