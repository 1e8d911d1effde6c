#include "eval/lab/directions.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "eval/lab/attention.h"
#include "eval/lab/widest.h"

namespace tessera::lab {
namespace {

TESSERA_LAB_CLONES double dot_doubles(const double* a, const double* b, int64_t count) {
  constexpr int64_t kSums = 8;
  double sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (int64_t j = 0; j < kSums; ++j) sums[j] += a[i + j] * b[i + j];
  }
  for (int64_t j = 0; i < count; ++i, ++j) sums[j] += a[i] * b[i];
  return std::accumulate(sums, sums + kSums, 0.0);
}

TESSERA_LAB_CLONES void add_floats(double* to, double factor, const float* what, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] += factor * double{what[i]};
}

TESSERA_LAB_CLONES void add_doubles(double* to, double factor, const double* what, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] += factor * what[i];
}

TESSERA_LAB_CLONES void turn_rows(double* a, double* b, double cos, double sin, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const double turned = cos * a[i] - sin * b[i];
    b[i] = sin * a[i] + cos * b[i];
    a[i] = turned;
  }
}

// Jacobi's rotations of rows, until all rows are orthogonal. The same rotations of the identity
// are the eigenvectors, and the rows' lengths the eigenvalues.
void make_rows_orthogonal(Symmetric& rows, Symmetric& vectors) {
  const int64_t size = rows.size;
  constexpr int kSweeps = 30;
  const double all = dot_doubles(rows.row(0), rows.row(0), size * size);
  bool turned = true;
  for (int sweep = 0; turned && sweep < kSweeps; ++sweep) {
    turned = false;
    for (int64_t a = 0; a + 1 < size; ++a) {
      for (int64_t b = a + 1; b < size; ++b) {
        const double cross = dot_doubles(rows.row(a), rows.row(b), size);
        const double of_a = dot_doubles(rows.row(a), rows.row(a), size);
        const double of_b = dot_doubles(rows.row(b), rows.row(b), size);
        if (std::fabs(cross) <= 1e-13 * std::sqrt(of_a * of_b) + 1e-24 * all) continue;
        turned = true;
        const double tau = (of_b - of_a) / (2 * cross);
        const double tan = std::copysign(1 / (std::fabs(tau) + std::hypot(1.0, tau)), tau);
        const double cos = 1 / std::hypot(1.0, tan);
        turn_rows(rows.row(a), rows.row(b), cos, cos * tan, size);
        turn_rows(vectors.row(a), vectors.row(b), cos, cos * tan, size);
      }
    }
  }
}

void normalise_rows(std::vector<double>& rows, int64_t cols) {
  const int64_t count = std::ssize(rows) / cols;
  for (int pass = 0; pass < 2; ++pass) {  // twice, against the rounding of nearly equal rows
    for (int64_t i = 0; i < count; ++i) {
      double* const own = rows.data() + i * cols;
      for (int64_t j = 0; j < i; ++j) {
        const double* const before = rows.data() + j * cols;
        add_doubles(own, -dot_doubles(own, before, cols), before, cols);
      }
      const double length = std::sqrt(dot_doubles(own, own, cols));
      for (int64_t c = 0; c < cols; ++c) own[c] /= std::max(length, 1e-300);
    }
  }
}

// Returns: rows * matrix.
std::vector<double> times(const std::vector<double>& rows, const Symmetric& matrix) {
  std::vector<double> product(rows.size());
  const int64_t cols = matrix.size;
  for (int64_t i = 0; i < std::ssize(rows) / cols; ++i) {
    for (int64_t c = 0; c < cols; ++c) {
      add_doubles(product.data() + i * cols, rows[static_cast<size_t>(i * cols + c)], matrix.row(c),
                  cols);
    }
  }
  return product;
}

Rows subspace(const Symmetric& matrix, int64_t block, int64_t count) {
  const int64_t cols = matrix.size;
  std::vector<double> rows(static_cast<size_t>(block * cols));
  uint64_t state = 1;  // of a linear congruential generator
  for (double& element : rows) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    element = static_cast<double>(state >> 11) / 9007199254740992.0 - 0.5;
  }
  constexpr int kIterations = 12;
  for (int i = 0; i < kIterations; ++i) {
    normalise_rows(rows, cols);
    rows = times(rows, matrix);
  }
  normalise_rows(rows, cols);
  const std::vector<double> product = times(rows, matrix);
  Symmetric inner(block);
  for (int64_t i = 0; i < block; ++i) {
    for (int64_t j = 0; j < block; ++j) {
      inner.row(i)[j] = dot_doubles(product.data() + i * cols, rows.data() + j * cols, cols);
    }
  }
  const Eigen mixed = eigen(inner);
  Rows found(cols);
  for (int64_t i = 0; i < count; ++i) {
    std::vector<double> sum(static_cast<size_t>(cols));
    for (int64_t j = 0; j < block; ++j) {
      add_doubles(sum.data(), double{mixed.vectors.row(i)[static_cast<size_t>(j)]},
                  rows.data() + j * cols, cols);
    }
    found.add(std::vector<float>(sum.begin(), sum.end()));
  }
  return found;
}

}  // namespace

void add_gram(MatrixView<const float> rows, const std::vector<double>& weights, double factor,
              Symmetric& to) {
  Symmetric sum(to.size);
  for (int64_t r = 0; r < rows.rows; ++r) {
    const std::span<const float> row = rows.row(r);
    const double weight = weights.empty() ? 1 : weights[static_cast<size_t>(r)];
    for (int64_t i = 0; i < to.size; ++i) {
      add_floats(sum.row(i) + i, weight * double{row[static_cast<size_t>(i)]}, row.data() + i,
                 to.size - i);
    }
  }
  for (int64_t i = 0; i < to.size; ++i) {
    for (int64_t j = 0; j < to.size; ++j) {
      to.row(i)[j] += factor * (i <= j ? sum.row(i)[j] : sum.row(j)[i]);
    }
  }
}

Eigen eigen(const Symmetric& matrix) {
  Symmetric rows = matrix;
  Symmetric vectors(matrix.size);
  for (int64_t i = 0; i < matrix.size; ++i) vectors.row(i)[i] = 1;
  make_rows_orthogonal(rows, vectors);
  std::vector<double> values;
  for (int64_t i = 0; i < matrix.size; ++i) {
    values.push_back(std::sqrt(dot_doubles(rows.row(i), rows.row(i), matrix.size)));
  }
  std::vector<int64_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](int64_t i) { return values[static_cast<size_t>(i)]; });
  Eigen found{{}, Rows(matrix.size)};
  for (const int64_t i : order) {
    found.values.push_back(values[static_cast<size_t>(i)]);
    std::vector<float> vector(vectors.row(i), vectors.row(i) + matrix.size);
    const float largest = *std::ranges::max_element(
        vector, std::less<>(), [](float element) { return std::fabs(element); });
    for (float& element : vector) element = largest < 0 ? -element : element;
    found.vectors.add(vector);
  }
  return found;
}

Rows leading_directions(MatrixView<const float> of, int64_t count) {
  Symmetric gram(of.cols);
  add_gram(of, {}, 1, gram);
  const int64_t wanted = std::min(count, of.cols);
  constexpr int64_t kMore = 16;  // rows of the block that only speed up the others
  if (wanted + kMore < of.cols) return subspace(gram, wanted + kMore, wanted);
  const Eigen all = eigen(gram);
  Rows first(of.cols);
  first.add(all.vectors.view().first_rows(wanted));
  return first;
}

void project_onto(const Rows& directions, MatrixView<float> rows) {
  std::vector<float> projection(static_cast<size_t>(rows.cols));
  for (int64_t r = 0; r < rows.rows; ++r) {
    std::ranges::fill(projection, 0.0f);
    for (int64_t d = 0; d < directions.rows(); ++d) {
      add_scaled(projection, dot(rows.row(r), directions.row(d)), directions.row(d));
    }
    std::ranges::copy(projection, rows.row(r).begin());
  }
}

}  // namespace tessera::lab
