#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>

#include "kernels/check.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/linear/panel.h"
#include "kernels/e4m3.h"
#include "kernels/half.h"

namespace tessera {
namespace {

// One output's inputs and its place in a panel.
struct Lane {
  std::span<const float> weights;  // empty if the output does not exist
  int64_t index = 0;
};

float weight_at(const Lane& lane, int64_t input) {
  const auto place = static_cast<size_t>(input);
  return place < lane.weights.size() ? lane.weights[place] : 0.0f;
}

void store_unit(std::byte* units, int64_t unit, int64_t lane, uint32_t bits) {
  std::memcpy(units + (unit * kPanelRows + lane) * 4, &bits, sizeof(bits));
}

float largest_magnitude(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) {
    largest = std::max(largest, std::fabs(value));
  }
  return largest;
}

// Rounds to nearest even and clamps; NaN becomes `lowest`.
int32_t to_code(float value, float lowest, float highest) {
  const float rounded = std::nearbyint(value);
  return static_cast<int32_t>(rounded >= lowest ? std::min(rounded, highest) : lowest);
}

void pack_f32(const Lane& lane, const PanelLayout& layout, std::byte* panel) {
  for (int64_t input = 0; input < layout.cols; ++input) {
    store_unit(panel, input, lane.index, std::bit_cast<uint32_t>(weight_at(lane, input)));
  }
}

void pack_bf16(const Lane& lane, const PanelLayout& layout, std::byte* panel) {
  for (int64_t input = 0; input < layout.cols; input += 2) {
    const uint32_t low = to_bf16(weight_at(lane, input)).bits;
    const uint32_t high = to_bf16(weight_at(lane, input + 1)).bits;
    store_unit(panel, input / 2, lane.index, low | (high << 16));
  }
}

void pack_f16(const Lane& lane, const PanelLayout& layout, std::byte* panel) {
  for (int64_t input = 0; input < layout.cols; ++input) {
    const f16 weight = to_f16(weight_at(lane, input));
    std::memcpy(panel + (input * kPanelRows + lane.index) * 2, &weight, sizeof(weight));
  }
}

void pack_fp8(const Lane& lane, const PanelLayout& layout, std::byte* panel) {
  const float scale = largest_magnitude(lane.weights) / kLargestE4m3;
  const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
  std::memcpy(panel + lane.index * 4, &scale, sizeof(scale));
  std::byte* units = panel + PanelLayout::kScaleBytes;
  for (int64_t input = 0; input < layout.cols; input += 4) {
    uint32_t bits = 0;
    for (const int64_t i : {3, 1, 2, 0}) {
      bits = (bits << 8) | to_e4m3(weight_at(lane, input + i) * inverse).bits;
    }
    store_unit(units, input / 4, lane.index, bits);
  }
}

// A block's scale and minimum as stored. Codes refer to the stored numbers, which are rounded.
struct BlockScale {
  f16 scale{};
  f16 minimum{};  // 0 in a symmetric format
};

BlockScale fit_symmetric(std::span<const float> block, float highest) {
  return {.scale = to_f16(std::min(largest_magnitude(block) / highest, kLargestF16)),
          .minimum = {}};
}

BlockScale fit_range(std::span<const float> block, float highest) {
  if (block.empty()) {
    return {};
  }
  const auto [low, high] = std::minmax_element(block.begin(), block.end());
  const f16 minimum = to_f16(std::clamp(*low, -kLargestF16, kLargestF16));
  const float range = std::max(*high - to_f32(minimum), 0.0f);
  return {.scale = to_f16(std::min(range / highest, kLargestF16)), .minimum = minimum};
}

// Packs one output's integers, block by block. A unit holds four codes of int8 or eight of int4.
class BlockPacker {
 public:
  explicit BlockPacker(const PanelLayout& layout)
      : layout_(layout), encoding_(encoding(layout.format)) {}

  void pack(const Lane& lane, std::byte* panel) const {
    for (int64_t block = 0; block < layout_.blocks(); ++block) {
      const auto first =
          std::min(static_cast<size_t>(block * encoding_.block), lane.weights.size());
      const auto count =
          std::min(static_cast<size_t>(encoding_.block), lane.weights.size() - first);
      pack_block({lane.weights.subspan(first, count), lane.index},
                 panel + block * layout_.block_bytes());
    }
  }

 private:
  void pack_block(const Lane& block, std::byte* bytes) const {
    const auto max_code = static_cast<float>((1 << encoding_.bits) - 1);
    const float highest = encoding_.minimum ? max_code : std::floor(max_code / 2);
    const float lowest = encoding_.minimum ? 0 : -highest;
    const BlockScale stored = encoding_.minimum ? fit_range(block.weights, highest)
                                                : fit_symmetric(block.weights, highest);
    std::memcpy(bytes + block.index * 2, &stored.scale, sizeof(f16));
    if (encoding_.minimum) {
      std::memcpy(bytes + (kPanelRows + block.index) * 2, &stored.minimum, sizeof(f16));
    }
    const float scale = to_f32(stored.scale);
    const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
    const float minimum = to_f32(stored.minimum);
    const int32_t offset = encoding_.minimum ? 0 : 128;
    const int64_t per_unit = 32 / encoding_.bits;
    for (int64_t unit = 0; unit < encoding_.block / per_unit; ++unit) {
      uint32_t bits = 0;
      for (int64_t i = 0; i < per_unit; ++i) {
        const float weight = weight_at(block, unit * per_unit + i);
        const int32_t code = to_code((weight - minimum) * inverse, lowest, highest);
        bits |= static_cast<uint32_t>(code + offset) << (8 * (i % 4) + encoding_.bits * (i / 4));
      }
      store_unit(bytes + layout_.block_scale_bytes(), unit, block.index, bits);
    }
  }

  PanelLayout layout_;
  WeightEncoding encoding_;
};

void pack_lane(const Lane& lane, const PanelLayout& layout, std::byte* panel) {
  switch (layout.format) {
    case WeightFormat::f32:
      return pack_f32(lane, layout, panel);
    case WeightFormat::bf16:
      return pack_bf16(lane, layout, panel);
    case WeightFormat::f16:
      return pack_f16(lane, layout, panel);
    case WeightFormat::int8:
    case WeightFormat::int4:
      return BlockPacker(layout).pack(lane, panel);
    case WeightFormat::fp8:
      return pack_fp8(lane, layout, panel);
  }
}

}  // namespace

int64_t packed_weight_bytes(WeightFormat format, int64_t rows, int64_t cols) {
  return PanelLayout{format, rows, cols}.bytes();
}

void pack_weight(MatrixView<const float> source, int64_t first_row, const PackedWeight& weight) {
  const PanelLayout layout{weight.format, weight.rows, weight.cols};
  const int64_t end_row = first_row + source.rows;
  TESSERA_CHECK(source.cols == weight.cols && end_row <= weight.rows, "a piece of another shape");
  TESSERA_CHECK(first_row % kPackRows == 0, "a piece starts between panels");
  TESSERA_CHECK(end_row % kPackRows == 0 || end_row == weight.rows, "a piece ends between panels");
  for (int64_t row = first_row; row < round_up(end_row, kPackRows); ++row) {
    Lane lane{.weights = {}, .index = row % kPanelRows};
    if (row < end_row) {
      lane.weights = source.row(row - first_row);
    }
    pack_lane(lane, layout, weight.data + row / kPanelRows * layout.panel_bytes());
  }
}

int64_t linear_scratch_bytes(int64_t tokens, int64_t cols) {
  int64_t bytes = 0;
  for (const WeightFormat format : kWeightFormats) {
    bytes = std::max(
        bytes, ActivationLayout{format, tokens, cols, ActivationLayout::kMaxCodeBytes}.bytes());
  }
  return bytes;
}

}  // namespace tessera
