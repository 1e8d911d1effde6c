#include "eval/lab/levels.h"

#include <algorithm>
#include <cmath>

namespace tessera::lab {
namespace {

void round_strided(float* numbers, int64_t count, int64_t stride, int bits) {
  float least = numbers[0];
  float most = numbers[0];
  for (int64_t i = 0; i < count; ++i) {
    least = std::min(least, numbers[i * stride]);
    most = std::max(most, numbers[i * stride]);
  }
  const double step = (double{most} - double{least}) / ((1 << bits) - 1);
  if (step == 0) return;
  for (int64_t i = 0; i < count; ++i) {
    float& number = numbers[i * stride];
    const double level = std::nearbyint((double{number} - double{least}) / step);
    number = static_cast<float>(double{least} + level * step);
  }
}

}  // namespace

void round_to_levels(std::span<float> group, int bits) {
  if (!group.empty()) round_strided(group.data(), std::ssize(group), 1, bits);
}

void round_channels(MatrixView<float> rows, int64_t tokens, int bits) {
  for (int64_t first = 0; first < rows.rows; first += tokens) {
    const int64_t count = std::min(tokens, rows.rows - first);
    for (int64_t channel = 0; channel < rows.cols; ++channel) {
      round_strided(rows.data + first * rows.stride + channel, count, rows.stride, bits);
    }
  }
}

void round_tokens(MatrixView<float> rows, int64_t channels, int bits) {
  for (int64_t row = 0; row < rows.rows; ++row) {
    for (int64_t first = 0; first < rows.cols; first += channels) {
      const int64_t count = std::min(channels, rows.cols - first);
      round_strided(rows.data + row * rows.stride + first, count, 1, bits);
    }
  }
}

}  // namespace tessera::lab
