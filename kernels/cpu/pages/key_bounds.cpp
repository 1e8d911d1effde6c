#include "kernels/cpu/pages/key_bounds.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/check.h"
#include "kernels/cpu/pages/page_codec.h"
#include "kernels/cpu/simd/limits.h"

namespace tessera {
namespace {

constexpr int32_t kScaleCodes = 32;  // the first codes, whose lowest bits are zero and step

// The zero is this part of the range below the lowest key, so that no code of a lower bound is 0.
constexpr float kRangeParts = 250;
constexpr float kLevels = 253;  // leaves a code above the largest upper bound
// Keys that are all equal still have a range.
constexpr float kLeastRange = 1e-3f;

// Return: the nearest bfloat16 that is not above (below) x.
float bf16_below(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((x < 0 ? bits + 0xffffu : bits) & 0xffff0000u);
}
float bf16_above(float x) {
  return -bf16_below(-x);
}

struct Range {
  float lowest[kMaxHeadDim];
  float highest[kMaxHeadDim];
};

Range range_of(const KvPageLayout& layout, const std::byte* page, int32_t tokens) {
  Range range;
  decode_key(layout, page, 0, range.lowest);
  std::copy_n(range.lowest, layout.head_dim, range.highest);
  float key[kMaxHeadDim];
  for (int32_t token = 1; token < tokens; ++token) {
    decode_key(layout, page, token, key);
    for (int32_t c = 0; c < layout.head_dim; ++c) {
      range.lowest[c] = std::min(range.lowest[c], key[c]);
      range.highest[c] = std::max(range.highest[c], key[c]);
    }
  }
  return range;
}

BoundScale scale_of(const Range& range, int32_t head_dim) {
  const float lowest = *std::min_element(range.lowest, range.lowest + head_dim);
  const float highest = *std::max_element(range.highest, range.highest + head_dim);
  const float least = kLeastRange * std::max(1.0f, std::abs(lowest));
  const float top = std::max(highest, lowest + least);
  const float zero = bf16_below(lowest - (top - lowest) / kRangeParts);
  return {zero, bf16_above((top - zero) / kLevels)};
}

// Return: the nearest code that is not on the inner side of x and has the lowest bit `bit`; any
// lowest bit if `bit` is negative. NaN has some code.
uint8_t code_above(double x, const BoundScale& scale, int32_t bit) {
  const double place = std::fmax(1, std::fmin((x - scale.zero) / scale.step, 254));
  const auto code = static_cast<int32_t>(std::ceil(place));
  return static_cast<uint8_t>(bit >= 0 && code % 2 != bit ? code + 1 : code);
}
uint8_t code_below(double x, const BoundScale& scale, int32_t bit) {
  const double place = std::fmax(1, std::fmin((x - scale.zero) / scale.step, 254));
  const auto code = static_cast<int32_t>(std::floor(place));
  return static_cast<uint8_t>(bit >= 0 && code % 2 != bit ? code - 1 : code);
}

}  // namespace

BoundScale bound_scale(const std::byte* bounds) {
  uint32_t bits = 0;
  for (int32_t first = 0; first < kScaleCodes; first += 8) {
    uint64_t codes;
    std::memcpy(&codes, bounds + first, sizeof(codes));
    // The product has the lowest bit of byte i in bit 56 + i.
    bits |= static_cast<uint32_t>((codes & 0x0101010101010101) * 0x0102040810204080 >> 56) << first;
  }
  return {std::bit_cast<float>(bits << 16), std::bit_cast<float>(bits & 0xffff0000u)};
}

void write_key_bounds(const KvPagesView& pages, const KvPageLayout& layout, int32_t tokens,
                      std::byte* page) {
  TESSERA_CHECK(tokens > 0 && tokens <= layout.capacity && layout.head_dim >= kMinBoundedHeadDim,
                "key bounds of no tokens, or of too few channels");
  const int32_t head_dim = layout.head_dim;
  const Range range = range_of(layout, page, tokens);
  const BoundScale scale = scale_of(range, head_dim);
  const uint32_t bits =
      std::bit_cast<uint32_t>(scale.zero) >> 16 | std::bit_cast<uint32_t>(scale.step);
  const auto bit_at = [&](int32_t i) {
    return i < kScaleCodes ? static_cast<int32_t>(bits >> i & 1) : -1;
  };
  std::byte* const codes = key_bounds(pages, page);
  for (int32_t c = 0; c < head_dim; ++c) {
    codes[c] = std::byte{code_above(range.highest[c], scale, bit_at(c))};
    codes[head_dim + c] = std::byte{code_below(range.lowest[c], scale, bit_at(head_dim + c))};
  }
}

}  // namespace tessera
