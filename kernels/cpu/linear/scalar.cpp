#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/cpu/linear/coded_lane.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/linear/panel.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "kernels/matrix/e4m3.h"
#include "kernels/matrix/half.h"

// The oracle: one loop over the inputs for each output. It uses the same packed weights and the
// same rounding of activations as the kernels that are compared with it.
namespace tessera::scalar {
namespace {

// Weights of one output inside a panel. Not owned.
struct Column {
  const std::byte* panel = nullptr;
  int64_t lane = 0;
  int64_t cols = 0;

  uint32_t word(int64_t offset) const {
    uint32_t bits = 0;
    std::memcpy(&bits, panel + offset, sizeof(bits));
    return bits;
  }
  uint32_t unit(int64_t units_offset, int64_t index) const {
    return word(units_offset + (index * kPanelRows + lane) * 4);
  }
};

// A row of activations as multiples of `scale`. The largest multiple is `highest`; multiples are
// integers or E4M3.
struct QuantisedRow {
  std::span<const float> values;
  float scale = 0;
  float inverse = 0;

  QuantisedRow(std::span<const float> row, float highest) : values(row) {
    uint32_t largest = 0;  // magnitude bits have the order of magnitudes; NaN is above all
    for (const float value : row) {
      largest = std::max(largest, std::bit_cast<uint32_t>(value) & 0x7fffffffu);
    }
    const float magnitude = std::bit_cast<float>(largest);
    const bool vanishes = magnitude < 1e-30f;  // its inverse might not be finite
    scale = vanishes ? 0.0f : magnitude / highest;
    inverse = vanishes ? 0.0f : highest / magnitude;
  }
  float scaled(int64_t input) const { return values[static_cast<size_t>(input)] * inverse; }
  int32_t operator[](int64_t input) const {
    const float rounded = std::nearbyint(scaled(input));
    return static_cast<int32_t>(rounded >= -127 ? std::min(rounded, 127.0f) : -127.0f);
  }
};

float dot_f32(std::span<const float> in, const Column& column) {
  float sum = 0;
  for (int64_t input = 0; input < column.cols; ++input) {
    sum += in[static_cast<size_t>(input)] * std::bit_cast<float>(column.unit(0, input));
  }
  return sum;
}

float dot_bf16(std::span<const float> in, const Column& column) {
  float sum = 0;
  for (int64_t input = 0; input < column.cols; ++input) {
    const uint32_t pair = column.unit(0, input / 2);
    const bf16 weight{static_cast<uint16_t>(pair >> (16 * (input % 2)))};
    sum += to_f32(to_bf16(in[static_cast<size_t>(input)])) * to_f32(weight);
  }
  return sum;
}

float round_to_f16(float x) {
  return to_f32(to_f16(x > kLargestF16 ? kLargestF16 : x < -kLargestF16 ? -kLargestF16 : x));
}

float dot_f16(std::span<const float> in, const Column& column) {
  float sum = 0;
  for (int64_t input = 0; input < column.cols; ++input) {
    f16 weight;
    std::memcpy(&weight, column.panel + (input * kPanelRows + column.lane) * 2, sizeof(weight));
    sum += round_to_f16(in[static_cast<size_t>(input)]) * to_f32(weight);
  }
  return sum;
}

// Sums of a block are exact integers. Blocks are added in ascending order.
float dot_blocks(WeightFormat format, std::span<const float> in, const Column& column) {
  const WeightEncoding stored = encoding(format);
  const CodedLane weights(format, column.panel, column.lane);
  std::array<uint8_t, 32> codes;
  float sum = 0;
  for (int64_t block = 0; block < stored.blocks(column.cols); ++block) {
    const int64_t first = block * stored.block;
    const int64_t inputs = std::min(stored.block, column.cols - first);
    const QuantisedRow own(in.subspan(static_cast<size_t>(first), static_cast<size_t>(inputs)),
                           127.0f);
    weights.codes(block, codes.data());
    int32_t products = 0;
    int32_t total = 0;
    for (int64_t i = 0; i < inputs; ++i) {
      const int32_t code = own[i];
      products += code * (codes[static_cast<size_t>(i)] - stored.offset);
      total += code;
    }
    sum = std::fma(static_cast<float>(products) * weights.scale(block), own.scale, sum);
    if (stored.minimum) {
      sum = std::fma(weights.minimum(block), own.scale * static_cast<float>(total), sum);
    }
  }
  return sum * weights.row_scale();
}

// Returns: the sum of products of E4M3, without scales.
float sum_fp8(const PanelLayout& layout, const QuantisedRow& in, int64_t first,
              const Column& column) {
  float sum = 0;
  for (int64_t i = 0; i < std::ssize(in.values); ++i) {
    constexpr int64_t kByteOf[] = {0, 2, 1, 3};
    const uint32_t quad = column.unit(layout.fp8_units_at(first + i), 0);
    const e4m3 weight{static_cast<uint8_t>(quad >> (8 * kByteOf[i % 4]))};
    sum += to_f32(to_e4m3(in.scaled(i))) * to_f32(weight);
  }
  return sum;
}

float dot_fp8(const PanelLayout& layout, const QuantisedRow& in, const Column& column) {
  const float scale = std::bit_cast<float>(column.word(column.lane * 4));
  return sum_fp8(layout, in, 0, column) * scale * in.scale;
}

// Groups are added in ascending order.
float dot_fp8_groups(const PanelLayout& layout, std::span<const float> in, const Column& column) {
  const int64_t group = encoding(layout.format).group;
  float sum = 0;
  for (int64_t first = 0; first < column.cols; first += group) {
    const int64_t inputs = std::min(group, column.cols - first);
    const QuantisedRow own(in.subspan(static_cast<size_t>(first), static_cast<size_t>(inputs)),
                           kLargestE4m3);
    const float scale =
        std::bit_cast<float>(column.word(layout.fp8_scales_at(first) + column.lane * 4));
    sum = std::fma(sum_fp8(layout, own, first, column) * scale, own.scale, sum);
  }
  return sum;
}

float dot(const PanelLayout& layout, const QuantisedRow& in, const Column& column) {
  switch (layout.format) {
    case WeightFormat::f32:
      return dot_f32(in.values, column);
    case WeightFormat::bf16:
      return dot_bf16(in.values, column);
    case WeightFormat::f16:
      return dot_f16(in.values, column);
    case WeightFormat::fp8:
      return dot_fp8(layout, in, column);
    case WeightFormat::fp8_group128:
      return dot_fp8_groups(layout, in.values, column);
    default:
      return dot_blocks(layout.format, in.values, column);
  }
}

}  // namespace

void linear(const LinearArgs& args, Stream stream) {
  const PackedWeight& weight = *args.weight;
  const PanelLayout layout{weight.format, weight.rows, weight.cols};
  ThreadPool::of(stream).parallel_for(
      weight.rows, kPanelRows, [&](int64_t begin, int64_t end, int /*worker*/) {
        std::vector<float> ordered;
        for (int64_t token = 0; token < args.in.rows; ++token) {
          std::span<const float> values = args.in.row(token);
          if (weight.input_order != nullptr) {
            ordered.resize(values.size());
            for (size_t i = 0; i < values.size(); ++i) {
              ordered[i] = values[static_cast<size_t>(weight.input_order[i])];
            }
            values = ordered;
          }
          const QuantisedRow in(values, is_fp8(weight.format) ? kLargestE4m3 : 127.0f);
          const std::span<float> out = args.out.row(token);
          for (int64_t row = begin; row < end; ++row) {
            const Column column{weight.data + row / kPanelRows * layout.panel_bytes(),
                                row % kPanelRows, weight.cols};
            const auto place = static_cast<size_t>(row);
            float value = dot(layout, in, column);
            value += args.bias.empty() ? 0.0f : args.bias[place];
            out[place] = args.accumulate ? out[place] + value : value;
          }
        }
      });
}

}  // namespace tessera::scalar
