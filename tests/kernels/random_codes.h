#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/matrix/weight.h"

namespace tessera {

// Random weights of a coded format, with every code and factor of its range.
struct RandomCodes {
  WeightFormat format;
  WeightEncoding stored;
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<uint8_t> codes;
  std::vector<int8_t> scale_factors;
  std::vector<int8_t> minimum_factors;
  std::vector<f16> scales;
  std::vector<f16> minimums;
  std::vector<uint8_t> zeros;
  std::vector<float> row_scales;

  RandomCodes(WeightFormat coded, int64_t row_count, int64_t col_count, std::mt19937& random)
      : format(coded), stored(encoding(coded)), rows(row_count), cols(col_count) {
    codes.resize(static_cast<size_t>(rows * cols));
    std::generate(codes.begin(), codes.end(),
                  [&] { return static_cast<uint8_t>(random() % (1u << stored.bits)); });
    const auto blocks = static_cast<size_t>(rows * cols / stored.block);
    scale_factors.resize(blocks);
    minimum_factors.resize(blocks);
    for (size_t i = 0; i < blocks; ++i) {
      scale_factors[i] = static_cast<int8_t>(stored.minimum ? random() % 64 : random());
      minimum_factors[i] = static_cast<int8_t>(random() % 64);
    }
    std::normal_distribution<float> normal(0.0f, stored.superblock > 0 ? 0.001f : 0.1f);
    scales.resize(static_cast<size_t>(rows * stored.scales(cols)));
    minimums.resize(scales.size());
    zeros.resize(scales.size());
    for (size_t i = 0; i < scales.size(); ++i) {
      scales[i] = to_f16(normal(random));
      minimums[i] = to_f16(normal(random));
      zeros[i] = static_cast<uint8_t>(random() % 17);
    }
    row_scales.resize(static_cast<size_t>(rows), 1.0f);
    if (stored.row_scale) {
      std::generate(row_scales.begin(), row_scales.end(), [&] { return 1.0f + normal(random); });
    }
  }

  // Returns: rows [first, first + count).
  WeightCodes view(int64_t first, int64_t count) const {
    const auto part = [&](const auto& values, int64_t width) {
      return MatrixView<const std::remove_cvref_t<decltype(values[0])>>{
          values.data() + first * width, count, width, width};
    };
    const int64_t blocks = cols / stored.block;
    const int64_t numbers = stored.scales(cols);
    return {.format = format,
            .codes = part(codes, cols),
            .scale_factors = part(scale_factors, blocks),
            .minimum_factors = part(minimum_factors, blocks),
            .scales = part(scales, numbers),
            .minimums = part(minimums, numbers),
            .zeros = part(zeros, numbers),
            .row_scales = part(row_scales, 1)};
  }
  WeightCodes view() const { return view(0, rows); }

  // Returns: the weight that encoding() describes, rounded to f32 once, after the sum.
  float weight(int64_t row, int64_t col) const {
    const auto block = static_cast<size_t>((row * cols + col) / stored.block);
    const auto number =
        static_cast<size_t>(row * stored.scales(cols) + col / stored.scale_inputs());
    double scale = to_f32(scales[number]);
    double minimum = stored.zero ? -scale * zeros[number] : to_f32(minimums[number]);
    if (stored.superblock > 0) {
      scale *= scale_factors[block];
      minimum *= minimum_factors[block];
    }
    const int32_t code = codes[static_cast<size_t>(row * cols + col)];
    const double weight = scale * (code - stored.offset) + (stored.minimum ? minimum : 0.0);
    return static_cast<float>(weight * row_scales[static_cast<size_t>(row)]);
  }
};

}  // namespace tessera
