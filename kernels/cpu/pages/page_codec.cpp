#include "kernels/cpu/pages/page_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/pages/sparse_codec.h"
#include "kernels/cpu/simd/limits.h"
#include "kernels/kv/rotation.h"

namespace tessera {
namespace {

constexpr int32_t kTile = KvPageLayout::kKeyTile;

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
  if (bits == 16) {
    store(to_stored_f16(value), to);
  } else {
    store(value, to);
  }
}

float load_float(int32_t bits, const std::byte* from) {
  return bits == 16 ? to_f32(load<f16>(from)) : load<float>(from);
}

void store_code(uint32_t code, int32_t bits, KvPageLayout::CodePlace place, std::byte* lines) {
  const uint32_t mask = ((1u << bits) - 1) << place.shift;
  const uint32_t others = std::to_integer<uint32_t>(lines[place.byte]) & ~mask;
  lines[place.byte] = static_cast<std::byte>(others | code << place.shift);
}

uint32_t load_code(int32_t bits, KvPageLayout::CodePlace place, const std::byte* lines) {
  return std::to_integer<uint32_t>(lines[place.byte]) >> place.shift & ((1u << bits) - 1);
}

CodeRange range_of(const float* channels, int32_t head_dim, int32_t bits) {
  const auto [lowest, highest] = std::minmax_element(channels, channels + head_dim);
  return code_range(*lowest, *highest, bits);
}

float decoded(uint32_t code, CodeRange range) {
  return to_f32(range.zero) + to_f32(range.scale) * static_cast<float>(code);
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

void decode_floats(const KvPageLayout& layout, const std::byte* page, int32_t token, float* keys,
                   float* values) {
  const std::byte* tile_keys = page + layout.keys_offset(token / kTile);
  const std::byte* tile_values = page + layout.values_offset(token / kTile);
  for (int32_t c = 0; c < layout.head_dim; ++c) {
    keys[c] = load_float(layout.format.key_bits, tile_keys + layout.key_offset(token % kTile, c));
    values[c] =
        load_float(layout.format.value_bits, tile_values + layout.value_offset(token % kTile, c));
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
  return {.keys = page + layout.keys_offset(tile),
          .key_scales = halves(layout.key_scales_offset(tile)),
          .key_zeros = halves(layout.key_zeros_offset(tile)),
          .values = page + layout.values_offset(tile),
          .value_scales = halves(layout.value_scales_offset(tile)),
          .value_zeros = halves(layout.value_zeros_offset(tile)),
          .key_bits = layout.format.key_bits,
          .value_bits = layout.format.value_bits};
}

void clear_tile(const KvPageLayout& layout, const CodeTile& tile) {
  std::memset(tile.keys, 0, static_cast<size_t>(layout.key_tile_bytes()));
  std::memset(tile.values, 0, static_cast<size_t>(layout.value_tile_bytes()));
  for (f16* of_tokens : {tile.key_scales, tile.key_zeros, tile.value_scales, tile.value_zeros}) {
    std::fill_n(of_tokens, kTile, f16{});
  }
}

void encode_in_tile(const KvPageLayout& layout, const CodeTile& tile, int32_t token,
                    const float* keys, const float* values) {
  if (token == 0) {
    clear_tile(layout, tile);
  }
  const CodeRange key_range = range_of(keys, layout.head_dim, tile.key_bits);
  const CodeRange value_range = range_of(values, layout.head_dim, tile.value_bits);
  tile.key_scales[token] = key_range.scale;
  tile.key_zeros[token] = key_range.zero;
  tile.value_scales[token] = value_range.scale;
  tile.value_zeros[token] = value_range.zero;
  for (int32_t c = 0; c < layout.head_dim; ++c) {
    store_code(code_of(keys[c], key_range, tile.key_bits), tile.key_bits,
               layout.key_place(token, c), tile.keys);
    store_code(code_of(values[c], value_range, tile.value_bits), tile.value_bits,
               layout.value_place(token, c), tile.values);
  }
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

void decode_token(const KvPageLayout& layout, const std::byte* page, int32_t token, float* keys,
                  float* values) {
  if (layout.format.is_sparse()) {
    decode_sparse_token(layout, page, token, keys, values);
    return;
  }
  if (layout.format.is_floats()) {
    decode_floats(layout, page, token, keys, values);
    return;
  }
  const int32_t tile = token / kTile;
  const int32_t t = token % kTile;
  const CodeRange key_range{load<f16>(page + layout.key_scales_offset(tile) + 2 * t),
                            load<f16>(page + layout.key_zeros_offset(tile) + 2 * t)};
  const CodeRange value_range{load<f16>(page + layout.value_scales_offset(tile) + 2 * t),
                              load<f16>(page + layout.value_zeros_offset(tile) + 2 * t)};
  for (int32_t c = 0; c < layout.head_dim; ++c) {
    keys[c] = decoded(
        load_code(layout.format.key_bits, layout.key_place(t, c), page + layout.keys_offset(tile)),
        key_range);
    values[c] = decoded(load_code(layout.format.value_bits, layout.value_place(t, c),
                                  page + layout.values_offset(tile)),
                        value_range);
  }
  if (layout.format.rotated) {
    rotate(keys, layout.head_dim);
    rotate(values, layout.head_dim);
  }
}

}  // namespace tessera
