#include "eval/lab/directions.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "eval/lab/attention.h"
#include "eval/lab/hadamard.h"

namespace tessera::lab {
namespace {

// Rows of a matrix whose singular values are 1, 1/2, 1/4, ... in mixed directions.
Rows halving_matrix(int64_t cols) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  Rows basis(cols, cols);
  for (int64_t i = 0; i < cols; ++i) {
    for (float& element : basis.row(i)) element = normal(random);
  }
  Symmetric gram(cols);
  add_gram(std::as_const(basis).view(), {}, 1, gram);
  Rows scaled = eigen(gram).vectors;
  for (int64_t i = 0; i < cols; ++i) {
    for (float& element : scaled.row(i)) element *= std::ldexp(1.0f, -static_cast<int>(i));
  }
  return scaled;
}

TEST(Directions, FindsTheSameByIterationsAsByRotations) {
  const Rows matrix = halving_matrix(60);
  const Rows few = leading_directions(matrix.view(), 6);    // by subspace iterations
  const Rows many = leading_directions(matrix.view(), 50);  // by rotations of the whole
  for (int64_t i = 0; i < few.rows(); ++i) {
    EXPECT_NEAR(std::fabs(dot(few.row(i), many.row(i))), 1, 1e-5) << i;
  }
}

TEST(Directions, GivesOrthonormalVectorsOfAMatrixWithoutFullRank) {
  Symmetric gram(9);
  const Rows two = [] {
    Rows rows(2, 9);
    std::iota(rows.row(0).begin(), rows.row(0).end(), 1.0f);
    rows.row(1)[3] = 2;
    return rows;
  }();
  add_gram(two.view(), {}, 1, gram);
  const Eigen found = eigen(gram);
  EXPECT_GT(found.values[1], 1);
  EXPECT_NEAR(found.values[2], 0, 1e-9);
  for (int64_t i = 0; i < 9; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      EXPECT_NEAR(dot(found.vectors.row(i), found.vectors.row(j)), i == j ? 1 : 0, 1e-6);
    }
  }
}

TEST(Hadamard, IsItsOwnInverseWholeAndInBlocks) {
  std::vector<float> elements(24);  // three blocks of eight
  std::iota(elements.begin(), elements.end(), 0.0f);
  const std::vector<float> before = elements;
  hadamard(elements);
  EXPECT_NEAR(elements[0], 28 / std::sqrt(8.0), 1e-5);
  hadamard(elements);
  for (size_t i = 0; i < elements.size(); ++i) EXPECT_NEAR(elements[i], before[i], 1e-5);
}

}  // namespace
}  // namespace tessera::lab
