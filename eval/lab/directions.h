#pragma once

#include <cstdint>
#include <vector>

#include "eval/lab/rows.h"

namespace tessera::lab {

// A symmetric matrix in f64.
struct Symmetric {
  explicit Symmetric(int64_t of_size)
      : size(of_size), elements(static_cast<size_t>(of_size * of_size)) {}
  double* row(int64_t index) { return elements.data() + index * size; }
  const double* row(int64_t index) const { return elements.data() + index * size; }

  int64_t size = 0;
  std::vector<double> elements;
};

// Adds factor * the sum over rows of weight * row^T row.
// weights: one for each row; empty: all are 1
void add_gram(MatrixView<const float> rows, const std::vector<double>& weights, double factor,
              Symmetric& to);

struct Eigen {
  std::vector<double> values;  // descending
  Rows vectors;                // one a row, orthonormal; the largest component is positive
};
// Requires: no negative eigenvalue but for rounding.
Eigen eigen(const Symmetric& matrix);

// Returns: the first `count` right singular vectors of a matrix, or fewer if it has fewer columns,
// one a row. Few of many columns are found by twelve subspace iterations.
Rows leading_directions(MatrixView<const float> of, int64_t count);

// Replaces each row by its projection onto orthonormal directions.
void project_onto(const Rows& directions, MatrixView<float> rows);

}  // namespace tessera::lab
