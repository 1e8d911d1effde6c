#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>

#include "base/check.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/linear/panel.h"
#include "kernels/matrix/e4m3.h"
#include "kernels/matrix/half.h"

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

// Stores one output's E4M3. code_at(input) returns the bits, also of an input beyond the last.
template <class CodeAt>
void store_fp8(const CodeAt& code_at, const PanelLayout& layout, int64_t lane, std::byte* panel) {
  for (int64_t input = 0; input < layout.cols; input += 4) {
    uint32_t bits = 0;
    for (const int64_t i : {3, 1, 2, 0}) {
      bits = (bits << 8) | code_at(input + i);
    }
    store_unit(panel + layout.fp8_units_at(input), 0, lane, bits);
  }
}

void pack_fp8(const Lane& lane, const PanelLayout& layout, std::byte* panel) {
  const float scale = largest_magnitude(lane.weights) / kLargestE4m3;
  const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
  std::memcpy(panel + lane.index * 4, &scale, sizeof(scale));
  store_fp8([&](int64_t input) { return to_e4m3(weight_at(lane, input) * inverse).bits; }, layout,
            lane.index, panel);
}

constexpr int64_t kBlockInputs = 32;  // of int8 and int4, to which weights are converted

// The weights of one output and block; zero beyond its inputs.
struct Block {
  std::array<float, kBlockInputs> weights = {};
  int64_t inputs = 0;

  std::span<const float> existing() const {
    return std::span(weights).first(static_cast<size_t>(inputs));
  }
};

// A block's scale and minimum as stored. Codes refer to the stored numbers, which are rounded.
struct BlockScale {
  f16 scale{};
  f16 minimum{};  // 0 in a symmetric format
};

using Codes = std::array<int32_t, kBlockInputs>;

// Rounds to nearest even, in a form that compilers vectorise.
Codes codes_of(const Block& block, BlockScale fit, float lowest, float highest) {
  constexpr float kUnits = 0x1.8p23f;  // floats of this size are integers
  const float scale = to_f32(fit.scale);
  const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
  const float minimum = to_f32(fit.minimum);
  Codes codes;
  for (size_t i = 0; i < codes.size(); ++i) {
    const float code = (block.weights[i] - minimum) * inverse;
    const float above = code > lowest ? code : lowest;
    const float inside = above < highest ? above : highest;
    codes[i] = static_cast<int32_t>((inside + kUnits) - kUnits);
  }
  return codes;
}

BlockScale fit_symmetric(const Block& block, float highest) {
  return {.scale = to_f16(std::min(largest_magnitude(block.weights) / highest, kLargestF16)),
          .minimum = {}};
}

BlockScale rounded(double scale, double minimum) {
  const auto store = [](double value) {
    return to_f16(std::clamp(static_cast<float>(value), -kLargestF16, kLargestF16));
  };
  return {.scale = store(scale), .minimum = store(minimum)};
}

// Fits the range of the weights to the range of the codes.
BlockScale fit_range(const Block& block, float highest) {
  if (block.inputs == 0) {
    return {};
  }
  const std::span<const float> weights = block.existing();
  const auto [low, high] = std::minmax_element(weights.begin(), weights.end());
  const float minimum = to_f32(rounded(0, *low).minimum);
  return rounded(std::max(*high - minimum, 0.0f) / highest, minimum);
}

// Returns: scale and minimum of the least squared error for the codes that `first` gives.
BlockScale fit_squares(const Block& block, BlockScale first, float highest) {
  const Codes codes = codes_of(block, first, 0, highest);
  int32_t code_sum = 0;
  int32_t code_squares = 0;
  double weight_sum = 0;
  double products = 0;
  for (size_t i = 0; i < block.existing().size(); ++i) {
    code_sum += codes[i];
    code_squares += codes[i] * codes[i];
    weight_sum += block.weights[i];
    products += static_cast<double>(codes[i]) * block.weights[i];
  }
  const auto count = static_cast<double>(block.inputs);
  const double spread = count * code_squares - code_sum * code_sum;
  if (spread <= 0) {
    return first;
  }
  const double scale = (count * products - code_sum * weight_sum) / spread;
  return rounded(scale, (weight_sum - scale * code_sum) / count);
}

// One output's integers of a block, as they are stored.
struct StoredBlock {
  const uint8_t* codes = nullptr;  // [block]
  int8_t scale_factor = 0;         // the factors only with superblocks
  int8_t minimum_factor = 0;
  uint8_t zero = 0;       // only with zero points
  BlockScale scale = {};  // of the block, group or superblock
};

// Stores the codes of one output's block. The trip counts are constants, because every weight of a
// model comes by here.
template <int kBits, int kBlock>
void store_codes(const uint8_t* codes, int64_t lane, std::byte* bytes) {
  constexpr uint32_t kLow = 0x0f0f0f0f;
  constexpr int kParts = kBlock / 4;
  uint32_t four[kParts];
  std::memcpy(four, codes, sizeof(four));
  if constexpr (kBits == 8) {
    for (int part = 0; part < kParts; ++part) {
      store_unit(bytes, part, lane, four[part]);
    }
    return;
  }
  if constexpr (kBits > 4) {
    uint32_t high = 0;
    for (int part = 0; part < kParts; ++part) {
      high |= (four[part] >> 4 & kLow) << (kBits - 4) * part;
    }
    store_unit(bytes, 0, lane, high);
    bytes += kUnitRowBytes;
  }
  for (int part = 0; part < kParts; part += 2) {
    store_unit(bytes, part / 2, lane, (four[part] & kLow) | (four[part + 1] & kLow) << 4);
  }
}

using StoreCodes = void (*)(const uint8_t* codes, int64_t lane, std::byte* bytes);

StoreCodes store_codes_of(const WeightEncoding& stored) {
  const auto is = [&](int64_t bits, int64_t block) {
    return stored.bits == bits && stored.block == block;
  };
  TESSERA_CHECK(is(4, 32) || is(5, 32) || is(6, 16) || is(8, 32), "codes without a panel");
  return stored.bits == 4   ? store_codes<4, 32>
         : stored.bits == 5 ? store_codes<5, 32>
         : stored.bits == 6 ? store_codes<6, 16>
                            : store_codes<8, 32>;
}

// Stores the blocks of one output in its panel, one after the other.
class LaneBlocks {
 public:
  LaneBlocks(const CodedPanel& places, int64_t lane, std::byte* panel)
      : stored_(places.stored),
        scale_bytes_(places.scale_bytes()),
        factor_bytes_(places.factor_bytes()),
        block_bytes_(places.block_bytes()),
        blocks_of_a_scale_(places.blocks_of_a_scale()),
        store_codes_(store_codes_of(places.stored)),
        lane_(lane),
        next_(panel + places.row_scale_bytes()) {}

  void store(const StoredBlock& block) {
    if (left_ == 0) {
      store_scale(block);
      left_ = blocks_of_a_scale_;
    }
    --left_;
    if (stored_.superblock > 0) {
      next_[lane_] = static_cast<std::byte>(block.scale_factor);
      if (stored_.minimum) {
        next_[kPanelRows + lane_] = static_cast<std::byte>(block.minimum_factor);
      }
    }
    store_codes_(block.codes, lane_, next_ + factor_bytes_);
    next_ += block_bytes_;
  }

 private:
  void store_scale(const StoredBlock& block) {
    std::byte* scales = next_ + lane_ * 2;
    std::memcpy(scales, &block.scale.scale, sizeof(f16));
    if (stored_.zero) {
      next_[kPanelRows * 2 + lane_] = static_cast<std::byte>(-block.zero);
    } else if (stored_.minimum) {
      std::memcpy(scales + kPanelRows * 2, &block.scale.minimum, sizeof(f16));
    }
    next_ += scale_bytes_;
  }

  const WeightEncoding stored_;
  const int64_t scale_bytes_;
  const int64_t factor_bytes_;
  const int64_t block_bytes_;
  const int64_t blocks_of_a_scale_;
  const StoreCodes store_codes_;
  const int64_t lane_;
  std::byte* next_;
  int64_t left_ = 0;  // blocks that have the last scale
};

// Converts one output to integers, block by block.
class BlockPacker {
 public:
  explicit BlockPacker(const PanelLayout& layout)
      : layout_(layout), places_(layout.format), encoding_(places_.stored) {
    TESSERA_CHECK(encoding_.block == kBlockInputs && encoding_.scale_inputs() == kBlockInputs &&
                      !encoding_.row_scale,
                  "a format to which no weight is converted");
  }

  void pack(const Lane& lane, std::byte* panel) const {
    const int64_t cols = std::ssize(lane.weights);
    LaneBlocks stored(places_, lane.index, panel);
    for (int64_t index = 0; index < encoding_.blocks(layout_.cols); ++index) {
      const int64_t first = std::min(index * kBlockInputs, cols);
      Block block{.inputs = std::min(kBlockInputs, cols - first)};
      std::copy_n(lane.weights.begin() + first, block.inputs, block.weights.begin());
      pack_block(block, stored);
    }
  }

 private:
  void pack_block(const Block& block, LaneBlocks& blocks) const {
    const auto max_code = static_cast<float>((1 << encoding_.bits) - 1);
    const float highest = encoding_.minimum ? max_code : std::floor(max_code / 2);
    const float lowest = encoding_.minimum ? 0 : -highest;
    const BlockScale stored = encoding_.minimum
                                  ? fit_squares(block, fit_range(block, highest), highest)
                                  : fit_symmetric(block, highest);
    const Codes codes = codes_of(block, stored, lowest, highest);
    std::array<uint8_t, kBlockInputs> unsigned_codes;
    std::transform(codes.begin(), codes.end(), unsigned_codes.begin(),
                   [&](int32_t code) { return static_cast<uint8_t>(code + encoding_.offset); });
    blocks.store({.codes = unsigned_codes.data(), .scale = stored});
  }

  PanelLayout layout_;
  CodedPanel places_;
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
    case WeightFormat::fp8:
      return pack_fp8(lane, layout, panel);
    default:
      return BlockPacker(layout).pack(lane, panel);
  }
}

// Stores one row of E4M3.
void store_fp8_row(const WeightCodes& codes, int64_t row, const PanelLayout& layout, int64_t lane,
                   std::byte* panel) {
  const std::span<const uint8_t> bits = codes.codes.row(row);
  const auto code_at = [&](int64_t input) {
    return input < layout.cols ? bits[static_cast<size_t>(input)] : uint8_t{0};
  };
  store_fp8(code_at, layout, lane, panel);
  const int64_t group = encoding(layout.format).group;
  for (int64_t index = 0; index < codes.row_scales.cols; ++index) {
    const float scale = codes.row_scales.row(row)[static_cast<size_t>(index)];
    std::memcpy(panel + layout.fp8_scales_at(index * group) + lane * 4, &scale, sizeof(scale));
  }
}

// Stores one row of integers.
void store_row(const WeightCodes& codes, int64_t row, int64_t lane, std::byte* panel) {
  const CodedPanel places(codes.format);
  const WeightEncoding& stored = places.stored;
  if (stored.row_scale) {
    std::memcpy(panel + lane * 4, codes.row_scales.row(row).data(), sizeof(float));
  }
  LaneBlocks blocks(places, lane, panel);
  const auto value = [](const auto& matrix, int64_t from, int64_t at) {
    return matrix.data[from * matrix.stride + at];
  };
  const int64_t sharing = places.blocks_of_a_scale();
  int64_t scale = 0;       // of the block
  int64_t left = sharing;  // blocks that have it
  for (int64_t index = 0; index < stored.blocks(codes.codes.cols); ++index, --left) {
    if (left == 0) {
      ++scale;
      left = sharing;
    }
    StoredBlock block{.codes = codes.codes.row(row).data() + index * stored.block};
    block.scale.scale = value(codes.scales, row, scale);
    if (stored.zero) {
      block.zero = value(codes.zeros, row, scale);
      TESSERA_CHECK(block.zero <= 127, "a zero point beyond 127");
    } else if (stored.minimum) {
      block.scale.minimum = value(codes.minimums, row, scale);
    }
    if (stored.superblock > 0) {
      block.scale_factor = value(codes.scale_factors, row, index);
      block.minimum_factor = stored.minimum ? value(codes.minimum_factors, row, index) : int8_t{0};
    }
    blocks.store(block);
  }
}

void check_piece(int64_t first_row, int64_t rows, int64_t cols, const PackedWeight& weight) {
  const int64_t end_row = first_row + rows;
  TESSERA_CHECK(cols == weight.cols && end_row <= weight.rows, "a piece of another shape");
  TESSERA_CHECK(first_row % kPackRows == 0, "a piece starts between panels");
  TESSERA_CHECK(end_row % kPackRows == 0 || end_row == weight.rows, "a piece ends between panels");
}

}  // namespace

int64_t packed_weight_bytes(WeightFormat format, int64_t rows, int64_t cols) {
  return PanelLayout{format, rows, cols}.bytes();
}

void pack_weight(MatrixView<const float> source, int64_t first_row, const PackedWeight& weight) {
  const PanelLayout layout{weight.format, weight.rows, weight.cols};
  check_piece(first_row, source.rows, source.cols, weight);
  const int64_t end_row = first_row + source.rows;
  for (int64_t row = first_row; row < round_up(end_row, kPackRows); ++row) {
    Lane lane{.weights = {}, .index = row % kPanelRows};
    if (row < end_row) {
      lane.weights = source.row(row - first_row);
    }
    pack_lane(lane, layout, weight.data + row / kPanelRows * layout.panel_bytes());
  }
}

void pack_codes(const WeightCodes& codes, int64_t first_row, const PackedWeight& weight) {
  const PanelLayout layout{weight.format, weight.rows, weight.cols};
  check_piece(first_row, codes.codes.rows, codes.codes.cols, weight);
  TESSERA_CHECK(codes.format == weight.format, "codes of another format");
  const int64_t whole = encoding(codes.format).whole_inputs();
  TESSERA_CHECK(whole == 0 || codes.codes.cols % whole == 0, "partial blocks");
  const int64_t end_row = first_row + codes.codes.rows;
  for (int64_t row = first_row; row < round_up(end_row, kPackRows); ++row) {
    std::byte* panel = weight.data + row / kPanelRows * layout.panel_bytes();
    if (row % kPanelRows == 0 && row + kPanelRows > end_row) {
      std::memset(panel, 0, static_cast<size_t>(layout.panel_bytes()));
    }
    if (row >= end_row) {
      continue;
    }
    if (is_fp8(codes.format)) {
      store_fp8_row(codes, row - first_row, layout, row % kPanelRows, panel);
    } else {
      store_row(codes, row - first_row, row % kPanelRows, panel);
    }
  }
}

int64_t linear_scratch_bytes(int64_t tokens, int64_t cols) {
  int64_t bytes = 0;
  for (int format = 0; format < kWeightFormatCount; ++format) {
    const auto each = static_cast<WeightFormat>(format);
    const int64_t input_bytes = ActivationLayout::max_input_bytes(each);
    bytes = std::max(bytes, ActivationLayout{each, tokens, cols, input_bytes}.bytes());
  }
  return bytes;
}

}  // namespace tessera
