#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/kv/rotation.h"
#include "kernels/matrix/e4m3.h"
#include "kernels/matrix/half.h"

namespace tessera {

// One token's keys or values as a page of codes has them, by the rule in kernels/kv/kv_format.h.
// Written for tests; independent of the ops.
struct CodedToken {
  float scale = 0;
  float zero = 0;
  std::vector<int32_t> codes;
  std::vector<int32_t> multipliers;  // of the scale: the codes, or their values in a codebook

  double decoded(size_t channel) const {
    return double{zero} + double{scale} * multipliers[channel];
  }
};

// A codebook's scale and codes, by the rule in kernels/kv/codebook_codes.h.
inline CodedToken encode_with_codebook(std::span<const float> numbers) {
  constexpr float kBook[] = {-127, -79, -45, -14, 14, 45, 79, 127};
  const auto place_of = [&](float x, float scale) {
    int32_t code = 0;
    while (code < 7 && x > (kBook[code] + kBook[code + 1]) / 2 * scale) {
      ++code;
    }
    return code;
  };
  const auto sum = [&](auto&& term) {
    float lanes[8] = {};
    for (size_t c = 0; c < numbers.size(); ++c) {
      lanes[c % 8] += term(numbers[c]);
    }
    return lanes[0] + lanes[4] + (lanes[2] + lanes[6]) +
           (lanes[1] + lanes[5] + (lanes[3] + lanes[7]));
  };
  const auto count = static_cast<float>(numbers.size());
  float scale = 0.017f * std::sqrt(sum([](float x) { return x * x; }) / count);
  for (int i = 0; i < 2; ++i) {
    const auto number = [&, now = scale](float x) { return kBook[place_of(x, now)]; };
    scale = std::max(0.0f, sum([&](float x) { return x * number(x); })) /
            sum([&](float x) { return number(x) * number(x); });
  }
  CodedToken token;
  token.scale = to_f32(to_f16(scale));
  token.zero = -128 * token.scale;
  for (const float x : numbers) {
    token.codes.push_back(place_of(x, token.scale));
    token.multipliers.push_back(
        static_cast<int32_t>(kBook[static_cast<size_t>(token.codes.back())]) + 128);
  }
  return token;
}

inline CodedToken encode(std::span<const float> numbers, int32_t bits) {
  if (bits == 3) {
    return encode_with_codebook(numbers);
  }
  const auto [low, high] = std::minmax_element(numbers.begin(), numbers.end());
  const auto steps = static_cast<float>((1 << bits) - 1);
  CodedToken token;
  token.zero = to_f32(to_f16(*low));
  token.scale = to_f32(to_f16(std::max(0.0f, (*high - token.zero) / steps)));
  for (const float x : numbers) {
    const float code = token.scale > 0 ? std::nearbyint((x - token.zero) / token.scale) : 0.0f;
    token.codes.push_back(static_cast<int32_t>(std::clamp(code, 0.0f, steps)));
  }
  token.multipliers = token.codes;
  return token;
}

// The same, as a page of a rotated format has them.
inline CodedToken encode(std::span<const float> numbers, int32_t bits, bool rotated) {
  std::vector<float> coded(numbers.begin(), numbers.end());
  if (rotated) {
    rotate(coded.data(), static_cast<int32_t>(coded.size()));
  }
  return encode(coded, bits);
}

// One token's keys or values as a page of a sparse format has them. Also independent of the ops.
struct PrunedToken {
  float scale = 0;  // of codes
  std::vector<bool> kept;
  std::vector<float> channels;  // as decoded
};

inline PrunedToken prune(std::span<const float> numbers, int32_t keep, int32_t bits) {
  std::vector<size_t> order(numbers.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return std::abs(numbers[a]) > std::abs(numbers[b]); });
  const auto last = static_cast<float>((1 << (bits - 1)) - 1);
  PrunedToken token{.kept = std::vector<bool>(numbers.size()),
                    .channels = std::vector<float>(numbers.size())};
  token.scale = to_f32(to_f16(std::abs(numbers[order[0]]) / last));
  for (const size_t c : std::span(order).first(static_cast<size_t>(keep))) {
    const float code =
        token.scale > 0 ? std::clamp(std::nearbyint(numbers[c] / token.scale), -last, last) : 0.0f;
    token.kept[c] = true;
    token.channels[c] = bits == 16 ? to_f32(to_f16(numbers[c])) : code * token.scale;
  }
  return token;
}

// Pages, tables, rows and residual buffers in plain vectors. Page ids are in random order. Bytes
// without a token are 0xff, which is NaN in every float.
class KvRows {
 public:
  struct Shape {
    std::vector<KvFormat> formats;
    int32_t head_dim = 0;
    int32_t page_tokens = 0;  // minimum, for every format
    int32_t slots = 0;
    int32_t layers = 0;
    int32_t kv_heads = 0;
    int32_t row_tokens = 0;  // of both tiers together
    bool coded_residuals = false;
  };

  explicit KvRows(const Shape& shape, std::mt19937& random) {
    int64_t page_bytes = 0;
    for (const KvFormat format : shape.formats) {
      page_bytes = std::max(
          page_bytes, KvPageLayout::make(format, shape.head_dim, shape.page_tokens).page_bytes);
    }
    const int64_t rows = int64_t{shape.slots} * shape.layers * shape.kv_heads;
    view_.page_bytes = page_bytes;
    int32_t min = shape.row_tokens;
    for (size_t i = 0; i < shape.formats.size(); ++i) {
      view_.layouts[i] = KvPageLayout::fit(shape.formats[i], shape.head_dim, page_bytes);
      min = std::min(min, view_.layouts[i].capacity);
    }
    view_.residual_layout = KvPageLayout::make(shape.coded_residuals        ? kKvK8V8
                                               : shape.formats[0] == kKvF32 ? kKvF32
                                                                            : kKvF16,
                                               shape.head_dim, kKvGroup);
    view_.row_pages = static_cast<int32_t>(div_ceil(shape.row_tokens, min)) + 1;
    view_.layers = shape.layers;
    view_.kv_heads = shape.kv_heads;
    view_.head_dim = shape.head_dim;
    tables_.resize(static_cast<size_t>(rows * view_.row_pages), -1);
    free_.resize(tables_.size());
    std::iota(free_.begin(), free_.end(), 0);
    std::shuffle(free_.begin(), free_.end(), random);
    rows_.resize(static_cast<size_t>(rows));
    arena_.resize(free_.size() * static_cast<size_t>(page_bytes) + kAlign, std::byte{0xff});
    residuals_.resize(static_cast<size_t>(rows * view_.residual_layout.page_bytes) + kAlign,
                      std::byte{0xff});
    view_.arena = aligned(arena_);
    view_.residuals = aligned(residuals_);
    view_.tables = tables_.data();
    view_.rows = rows_.data();
  }
  KvRows(const KvRows&) = delete;
  KvRows& operator=(const KvRows&) = delete;

  const KvPagesView& view() const { return view_; }
  std::vector<int32_t>& tables() { return tables_; }
  static std::byte* aligned(std::vector<std::byte>& bytes) {
    void* start = bytes.data();
    size_t space = bytes.size();
    return static_cast<std::byte*>(std::align(kAlign, kAlign, start, space));
  }
  static constexpr size_t kAlign = 128;

  // Appends a token to a tier of a row.
  void append_high(int64_t row, uint8_t tier, std::span<const float> keys,
                   std::span<const float> values) {
    const int32_t at = rows_[static_cast<size_t>(row)].high++;
    const KvPageLayout& layout = view_.layouts[tier];
    put(layout, page(row, at / layout.capacity), at % layout.capacity, keys, values);
  }
  void append_low(int64_t row, uint8_t tier, std::span<const float> keys,
                  std::span<const float> values) {
    const int32_t at = rows_[static_cast<size_t>(row)].low++;
    const KvPageLayout& layout = view_.layouts[tier];
    put(layout, page(row, view_.row_pages - 1 - at / layout.capacity), at % layout.capacity, keys,
        values);
  }

  static void put(const KvPageLayout& layout, std::byte* page, int32_t token,
                  std::span<const float> keys, std::span<const float> values) {
    const int64_t tile = token / KvPageLayout::kKeyTile;
    const int32_t lane = token % KvPageLayout::kKeyTile;
    std::byte* key_tile = page + layout.keys_offset(tile);
    std::byte* value_tile = page + layout.values_offset(tile);
    if (layout.format.is_sparse()) {
      put_sparse(layout, page, token, keys, values);
      return;
    }
    if (!layout.format.is_codes()) {
      for (int32_t c = 0; c < layout.head_dim; ++c) {
        const size_t i = static_cast<size_t>(c);
        put_float(key_tile + layout.key_offset(lane, c), keys[i], layout.format.key_bits);
        put_float(value_tile + layout.value_offset(lane, c), values[i], layout.format.value_bits);
      }
      return;
    }
    if (lane == 0) {  // the first token of a tile clears it: the padding is codes 0
      std::fill_n(key_tile, layout.key_tile_bytes(), std::byte{0});
      std::fill_n(value_tile, layout.value_tile_bytes(), std::byte{0});
    }
    const CodedToken key = encode(keys, layout.format.key_bits, layout.format.rotated);
    const CodedToken value = encode(values, layout.format.value_bits, layout.format.rotated);
    for (int32_t c = 0; c < layout.head_dim; ++c) {
      put_code(key_tile, layout.key_place(lane, c), key.codes[static_cast<size_t>(c)]);
      put_code(value_tile, layout.value_place(lane, c), value.codes[static_cast<size_t>(c)]);
    }
    put_float(page + layout.key_scales_offset(tile) + 2 * lane, key.scale, 16);
    put_float(page + layout.value_scales_offset(tile) + 2 * lane, value.scale, 16);
    if (layout.format.key_bits != 3) {
      put_float(page + layout.key_zeros_offset(tile) + 2 * lane, key.zero, 16);
    }
    if (layout.format.value_bits != 3) {
      put_float(page + layout.value_zeros_offset(tile) + 2 * lane, value.zero, 16);
    }
  }

 private:
  // The kept channels, contiguous, and a bit for each in the bitmap.
  struct SparsePlaces {
    std::byte* kept;
    std::byte* bitmap;
    int64_t kept_bytes;
    int64_t bitmap_bytes;
  };
  static void put_pruned(const PrunedToken& token, int32_t bits, const SparsePlaces& to) {
    std::fill_n(to.kept, to.kept_bytes, std::byte{0});
    std::fill_n(to.bitmap, to.bitmap_bytes, std::byte{0});
    int32_t i = 0;
    for (size_t c = 0; c < token.kept.size(); ++c) {
      if (!token.kept[c]) {
        continue;
      }
      if (to.bitmap_bytes > 0) {
        to.bitmap[c / 8] |= std::byte{1} << c % 8;
      }
      const int32_t code = token.scale > 0
                               ? static_cast<int32_t>(token.channels[c] / token.scale +
                                                      (token.channels[c] < 0 ? -0.5f : 0.5f))
                               : 0;
      if (bits == 16) {
        put_float(to.kept + 2 * i, token.channels[c], 16);
      } else if (bits == 8) {
        to.kept[i] = static_cast<std::byte>(code);
      } else {
        to.kept[i / 2] |= static_cast<std::byte>((code & 15) << i % 2 * 4);
      }
      ++i;
    }
  }
  static void put_sparse(const KvPageLayout& layout, std::byte* page, int32_t token,
                         std::span<const float> keys, std::span<const float> values) {
    const int64_t tile = token / KvPageLayout::kKeyTile;
    const int32_t lane = token % KvPageLayout::kKeyTile;
    const KvFormat format = layout.format;
    const PrunedToken key = prune(keys, format.kept_keys(layout.head_dim), format.key_bits);
    const PrunedToken value = prune(values, format.kept_values(layout.head_dim), format.value_bits);
    std::byte* key_tile = page + layout.keys_offset(tile);
    std::byte* value_tile = page + layout.values_offset(tile);
    put_pruned(key, format.key_bits,
               {key_tile + layout.kept_keys_offset(lane), key_tile + layout.key_bitmap_offset(lane),
                layout.kept_key_bytes(), layout.key_bitmap_bytes()});
    put_pruned(value, format.value_bits,
               {value_tile + layout.kept_values_offset(lane),
                value_tile + layout.value_bitmap_offset(lane), layout.kept_value_bytes(),
                layout.value_bitmap_bytes()});
    if (format.key_bits <= 8) {
      put_float(page + layout.key_scales_offset(tile) + 2 * lane, key.scale, 16);
    }
    if (format.value_bits <= 8) {
      put_float(page + layout.value_scales_offset(tile) + 2 * lane, value.scale, 16);
    }
  }

  static void put_float(std::byte* at, float x, int32_t bits) {
    if (bits == 8) {
      *reinterpret_cast<e4m3*>(at) = to_e4m3(x);
    } else if (bits == 16) {
      *reinterpret_cast<f16*>(at) = to_f16(x);
    } else {
      *reinterpret_cast<float*>(at) = x;
    }
  }
  static void put_code(std::byte* tile, KvPageLayout::CodePlace place, int32_t code) {
    place.store(static_cast<uint32_t>(code), tile);
  }

  std::byte* page(int64_t row, int32_t entry) {
    int32_t& id = tables_[static_cast<size_t>(row * view_.row_pages + entry)];
    if (id < 0) {
      id = free_.back();
      free_.pop_back();
    }
    return view_.page(id);
  }

  KvPagesView view_;
  std::vector<int32_t> tables_;
  std::vector<int32_t> free_;
  std::vector<KvRow> rows_;
  std::vector<std::byte> arena_;
  std::vector<std::byte> residuals_;
};

}  // namespace tessera
