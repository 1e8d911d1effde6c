#pragma once

#include <cstdint>
#include <vector>

#include "kernels/weight.h"
#include "models/gguf/block_types.h"

namespace tessera {

// Owns some rows of weights as integers, between a checkpoint and a backend.
class CodeRows {
 public:
  // Old contents are lost.
  // Requires: a coded format; `cols` is a multiple of its scale_inputs().
  void resize(WeightFormat format, int64_t rows, int64_t cols) {
    const WeightEncoding stored = encoding(format);
    format_ = format;
    rows_ = rows;
    cols_ = cols;
    numbers_ = cols / stored.scale_inputs();
    factors_ = stored.superblock > 0 ? cols / stored.block : 0;
    codes_.resize(static_cast<size_t>(rows * cols));
    scales_.resize(static_cast<size_t>(rows * numbers_));
    minimums_.resize(stored.minimum ? scales_.size() : 0);
    scale_factors_.resize(static_cast<size_t>(rows * factors_));
    minimum_factors_.resize(stored.minimum ? scale_factors_.size() : 0);
  }

  // Returns: the places of a row's blocks.
  BlockPlaces places(int64_t row) {
    return {codes_.data() + row * cols_, scales_.data() + row * numbers_,
            minimums_.empty() ? nullptr : minimums_.data() + row * numbers_,
            scale_factors_.empty() ? nullptr : scale_factors_.data() + row * factors_,
            minimum_factors_.empty() ? nullptr : minimum_factors_.data() + row * factors_};
  }

  WeightCodes view() const {
    return {.format = format_,
            .codes = {codes_.data(), rows_, cols_, cols_},
            .scale_factors = {scale_factors_.data(), rows_, factors_, factors_},
            .minimum_factors = {minimum_factors_.data(), rows_, factors_, factors_},
            .scales = {scales_.data(), rows_, numbers_, numbers_},
            .minimums = {minimums_.data(), rows_, numbers_, numbers_}};
  }

 private:
  WeightFormat format_ = WeightFormat::int8;
  int64_t rows_ = 0;
  int64_t cols_ = 0;
  int64_t numbers_ = 0;  // scales of a row
  int64_t factors_ = 0;  // of a row
  std::vector<uint8_t> codes_;
  std::vector<f16> scales_;
  std::vector<f16> minimums_;
  std::vector<int8_t> scale_factors_;
  std::vector<int8_t> minimum_factors_;
};

}  // namespace tessera
