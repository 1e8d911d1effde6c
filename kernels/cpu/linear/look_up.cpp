#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/cpu/linear/coded_lane.h"
#include "kernels/cpu/linear/linear.h"

namespace tessera {
namespace {

// Copies one output's elements, which are `kTogether` in a unit of 32 outputs.
template <class T, int64_t kTogether>
void look_up_elements(const std::byte* panel, int64_t lane, int64_t cols, float* out) {
  for (int64_t input = 0; input < cols; ++input) {
    const int64_t unit = input / kTogether * kPanelRows + lane;
    const auto place = static_cast<size_t>(unit * kTogether + input % kTogether);
    T element;
    std::memcpy(&element, panel + place * sizeof(T), sizeof(T));
    if constexpr (sizeof(T) == sizeof(float)) {
      out[input] = element;
    } else {
      out[input] = to_f32(element);
    }
  }
}

void look_up_codes(WeightFormat format, const CodedLane& lane, int64_t cols, float* out) {
  const WeightEncoding stored = encoding(format);
  const float row_scale = lane.row_scale();
  std::array<uint8_t, 32> codes;
  for (int64_t block = 0; block < stored.blocks(cols); ++block) {
    const int64_t first = block * stored.block;
    const int64_t inputs = std::min(stored.block, cols - first);
    const float scale = lane.scale(block);
    const float minimum = stored.minimum ? lane.minimum(block) : 0.0f;
    lane.codes(block, codes.data());
    for (int64_t i = 0; i < inputs; ++i) {
      const auto code = static_cast<float>(codes[static_cast<size_t>(i)] - stored.offset);
      const float product = scale * code;
      out[first + i] = (stored.minimum ? product + minimum : product) * row_scale;
    }
  }
}

}  // namespace

bool looks_up_rows(WeightFormat format) {
  return !is_fp8(format);
}

void look_up_row(const PackedWeight& weight, int64_t row, float* out) {
  const PanelLayout layout{weight.format, weight.rows, weight.cols};
  const std::byte* panel = weight.data + row / kPanelRows * layout.panel_bytes();
  const int64_t lane = row % kPanelRows;
  switch (weight.format) {
    case WeightFormat::f32:
      return look_up_elements<float, 1>(panel, lane, weight.cols, out);
    case WeightFormat::bf16:
      return look_up_elements<bf16, 2>(panel, lane, weight.cols, out);
    case WeightFormat::f16:
      return look_up_elements<f16, 1>(panel, lane, weight.cols, out);
    default:
      return look_up_codes(weight.format, CodedLane(weight.format, panel, lane), weight.cols, out);
  }
}

}  // namespace tessera
