#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "files/block_types.h"
#include "kernels/matrix/weight.h"

namespace tessera {

// Places of one row. Not owned. Spans are empty where the format has none.
struct RowPlaces {
  std::span<uint8_t> codes;     // [cols]
  std::span<f16> scales;        // [scales]
  std::span<uint8_t> zeros;     // [scales]
  std::span<float> row_scales;  // [1], of E4M3 [scales]
};

// Owns some rows of weights as codes, between a checkpoint and a backend.
class CodeRows {
 public:
  // Old contents are lost.
  // Requires: a coded format or one of E4M3; `cols` is a multiple of its whole_inputs().
  void resize(WeightFormat format, int64_t rows, int64_t cols) {
    const WeightEncoding stored = encoding(format);
    format_ = format;
    rows_ = rows;
    cols_ = cols;
    numbers_ = stored.is_coded() ? stored.scales(cols) : 0;
    zeros_of_a_row_ = stored.zero ? numbers_ : 0;
    row_numbers_ = is_fp8(format) ? stored.scales(cols) : stored.row_scale ? 1 : 0;
    factors_ = stored.superblock > 0 ? cols / stored.block : 0;
    codes_.resize(static_cast<size_t>(rows * cols));
    scales_.resize(static_cast<size_t>(rows * numbers_));
    minimums_.resize(stored.minimum && !stored.zero ? scales_.size() : 0);
    scale_factors_.resize(static_cast<size_t>(rows * factors_));
    minimum_factors_.resize(stored.minimum ? scale_factors_.size() : 0);
    zeros_.resize(static_cast<size_t>(rows * zeros_of_a_row_));
    row_scales_.resize(static_cast<size_t>(rows * row_numbers_));
  }

  // Returns: the places of a row's blocks in a GGUF format.
  BlockPlaces places(int64_t row) {
    return {codes_.data() + row * cols_, scales_.data() + row * numbers_,
            minimums_.empty() ? nullptr : minimums_.data() + row * numbers_,
            scale_factors_.empty() ? nullptr : scale_factors_.data() + row * factors_,
            minimum_factors_.empty() ? nullptr : minimum_factors_.data() + row * factors_};
  }

  // Returns: the places of a row in a format of groups, or of E4M3.
  RowPlaces row(int64_t row) {
    const auto part = [row](auto& values, int64_t width) {
      return std::span(values).subspan(static_cast<size_t>(row * width),
                                       static_cast<size_t>(width));
    };
    return {part(codes_, cols_), part(scales_, numbers_), part(zeros_, zeros_of_a_row_),
            part(row_scales_, row_numbers_)};
  }

  WeightCodes view() const {
    return {.format = format_,
            .codes = {codes_.data(), rows_, cols_, cols_},
            .scale_factors = {scale_factors_.data(), rows_, factors_, factors_},
            .minimum_factors = {minimum_factors_.data(), rows_, factors_, factors_},
            .scales = {scales_.data(), rows_, numbers_, numbers_},
            .minimums = {minimums_.data(), rows_, numbers_, numbers_},
            .zeros = {zeros_.data(), rows_, zeros_of_a_row_, zeros_of_a_row_},
            .row_scales = {row_scales_.data(), rows_, row_numbers_, row_numbers_}};
  }

 private:
  WeightFormat format_ = WeightFormat::int8;
  int64_t rows_ = 0;
  int64_t cols_ = 0;
  int64_t numbers_ = 0;  // scales of a row
  int64_t zeros_of_a_row_ = 0;
  int64_t row_numbers_ = 0;  // f32 scales of a row
  int64_t factors_ = 0;      // of a row
  std::vector<uint8_t> codes_;
  std::vector<f16> scales_;
  std::vector<f16> minimums_;
  std::vector<int8_t> scale_factors_;
  std::vector<int8_t> minimum_factors_;
  std::vector<uint8_t> zeros_;
  std::vector<float> row_scales_;
};

}  // namespace tessera
