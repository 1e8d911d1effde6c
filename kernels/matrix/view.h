#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera {

// View of a row-major matrix with rows `stride` elements apart. Does not own `data`.
template <class T>
struct MatrixView {
  T* data = nullptr;  // [rows, cols]
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // elements from one row to the next, >= cols

  constexpr std::span<T> row(int64_t index) const {
    return {data + index * stride, static_cast<size_t>(cols)};
  }
  MatrixView first_rows(int64_t count) const { return {data, count, cols, stride}; }
  MatrixView rows_from(int64_t first, int64_t count) const {
    return {data + first * stride, count, cols, stride};
  }
  MatrixView columns(int64_t first, int64_t count) const {
    return {data + first, rows, count, stride};
  }
  operator MatrixView<const T>() const { return {data, rows, cols, stride}; }
};

inline constexpr int64_t div_ceil(int64_t value, int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

inline constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return div_ceil(value, multiple) * multiple;
}

}  // namespace tessera
