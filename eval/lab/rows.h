#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/matrix/view.h"

namespace tessera::lab {

// A matrix that grows by rows and owns its elements.
class Rows {
 public:
  Rows() = default;
  explicit Rows(int64_t cols) : cols_(cols) {}
  Rows(int64_t rows, int64_t cols) : cols_(cols), data_(static_cast<size_t>(rows * cols)) {}

  int64_t rows() const { return cols_ == 0 ? 0 : std::ssize(data_) / cols_; }
  int64_t cols() const { return cols_; }
  std::span<float> row(int64_t index) { return std::span(data_).subspan(at(index), at(1)); }
  std::span<const float> row(int64_t index) const {
    return std::span(data_).subspan(at(index), at(1));
  }
  // Returns: columns [first, first + count) of all rows. Valid until rows are added.
  MatrixView<const float> columns(int64_t first, int64_t count) const {
    return {data_.data() + first, rows(), count, cols_};
  }
  MatrixView<const float> view() const { return columns(0, cols_); }
  MatrixView<float> view() { return {data_.data(), rows(), cols_, cols_}; }

  void add(std::span<const float> row) { data_.insert(data_.end(), row.begin(), row.end()); }
  void add(MatrixView<const float> rows) {
    for (int64_t i = 0; i < rows.rows; ++i) add(rows.row(i));
  }
  // Keeps these rows, in this order.
  // Requires: ascending indices of rows.
  void keep(std::span<const int32_t> rows) {
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto from = row(rows[i]);
      std::copy(from.begin(), from.end(), row(static_cast<int64_t>(i)).begin());
    }
    data_.resize(at(std::ssize(rows)));
  }

 private:
  size_t at(int64_t rows) const { return static_cast<size_t>(rows * cols_); }

  int64_t cols_ = 0;
  std::vector<float> data_;
};

}  // namespace tessera::lab
