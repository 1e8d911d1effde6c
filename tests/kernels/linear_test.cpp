#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads/thread_pool.h"

namespace tessera {
namespace {

constexpr int64_t kSizes[] = {1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 172};

struct Matrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<float> values;

  Matrix(int64_t row_count, int64_t col_count)
      : rows(row_count), cols(col_count), values(static_cast<size_t>(row_count * col_count)) {}
  float& at(int64_t row, int64_t col) { return values[static_cast<size_t>(row * cols + col)]; }
  float at(int64_t row, int64_t col) const { return values[static_cast<size_t>(row * cols + col)]; }
  MatrixView<float> view() { return {values.data(), rows, cols, cols}; }
  MatrixView<const float> view() const { return {values.data(), rows, cols, cols}; }
  MatrixView<const float> slice(int64_t first, int64_t count) const {
    return {values.data() + first * cols, count, cols, cols};
  }
};

Matrix random_matrix(int64_t rows, int64_t cols, std::mt19937& random) {
  std::normal_distribution<float> normal;
  Matrix matrix(rows, cols);
  for (float& value : matrix.values) {
    value = normal(random);
  }
  return matrix;
}

struct Weight {
  std::vector<std::byte> bytes;
  PackedWeight packed;

  Weight(const Backend& backend, WeightFormat format, int64_t rows, int64_t cols)
      : bytes(static_cast<size_t>(backend.packed_weight_bytes(format, rows, cols))),
        packed{format, rows, cols, bytes.data()} {}
};

Weight pack(const Backend& backend, WeightFormat format, const Matrix& matrix) {
  Weight weight(backend, format, matrix.rows, matrix.cols);
  backend.pack_weight(matrix.view(), 0, weight.packed);
  return weight;
}

struct Extras {
  std::vector<float> bias;
  bool accumulate = false;
  Matrix out{0, 0};  // initial content, if `accumulate`
};

Matrix linear(const Backend& backend, const Matrix& in, const Weight& weight, ThreadPool& pool,
              const Extras& extras = {}) {
  Matrix out = extras.accumulate ? extras.out : Matrix(in.rows, weight.packed.rows);
  if (!extras.accumulate) {
    std::fill(out.values.begin(), out.values.end(), std::nanf(""));  // must not be read
  }
  std::vector<std::byte> scratch(
      static_cast<size_t>(backend.linear_scratch_bytes(in.rows, in.cols)));
  backend.linear({.in = in.view(),
                  .weight = &weight.packed,
                  .bias = extras.bias,
                  .accumulate = extras.accumulate,
                  .out = out.view(),
                  .scratch = scratch},
                 pool.stream());
  return out;
}

// The sum itself, and the sum of the magnitudes of its terms, in double precision.
struct Exact {
  double value = 0;
  double magnitude = 0;
};

Exact exact(const Matrix& in, const Matrix& weight, int64_t token, int64_t row) {
  Exact result;
  for (int64_t col = 0; col < in.cols; ++col) {
    const double product = static_cast<double>(in.at(token, col)) * weight.at(row, col);
    result.value += product;
    result.magnitude += std::fabs(product);
  }
  return result;
}

// Rounding of f32 sums: each of `cols` additions and products has an error of 2^-24 of a partial
// sum, which the magnitudes bound. Doubled for second-order errors and the scales.
double rounding_bound(int64_t cols, double magnitude) {
  return static_cast<double>(cols + 8) * 0x1p-23 * magnitude + 1e-30;
}

// Max error of an input and of a weight, of magnitudes x and w, when they are rounded to a format.
// `in` and `weight` are the inputs and weights that share a scale with them.
//   f16   2^-11 of itself, or half of the smallest number, 2^-24
//   int8  half a step of largest / 127, and a weight that the scale's rounding to f16 (2^-11 of
//         127 steps) clamps
//   int4  inputs as int8; weights by half a step of range / 15, and half a step by which least
//         squares may move an end of the range; the rounding of scale and minimum to f16 moves the
//         last code by 2^-11 of the range and of the minimum
//   fp8   2^-4 of itself: half of the last of its 4 significant bits; or half of the smallest
//         number, 2^-10, on a scale where the largest input (weight) is 448
struct Rounding {
  double input = 0;
  double weight = 0;
};

struct Range {
  double low = 0;
  double high = 0;

  Range(const Matrix& matrix, int64_t row, int64_t first, int64_t end)
      : low(matrix.at(row, first)), high(low) {
    for (int64_t col = first; col < std::min(end, matrix.cols); ++col) {
      low = std::min<double>(low, matrix.at(row, col));
      high = std::max<double>(high, matrix.at(row, col));
    }
  }
  double largest() const { return std::max(std::fabs(low), std::fabs(high)); }
};

Rounding rounding(WeightFormat format, double x, double w, const Range& in, const Range& weight) {
  constexpr double kScaleRounding = 0x1p-11;
  constexpr double kNearly = 1.0001;  // f32 arithmetic of the conversion
  const auto e4m3_error = [](double value, double max) {
    return value * 0x1p-4 * kNearly + max / 448 * 0x1p-10;
  };
  const double integer = in.largest() / 254 * kNearly;
  switch (format) {
    case WeightFormat::f16:
      return {x * 0x1p-11 + 0x1p-25, w * 0x1p-11 + 0x1p-25};
    case WeightFormat::fp8:
      return {e4m3_error(x, in.largest()), e4m3_error(w, weight.largest())};
    case WeightFormat::int8:
      return {integer, weight.largest() * (1.0 / 254 + kScaleRounding) * kNearly};
    default: {
      const double range = weight.high - weight.low + kScaleRounding * weight.largest();
      return {integer,
              (range * (1.0 / 15 + kScaleRounding) + weight.largest() * kScaleRounding) * kNearly};
    }
  }
}

// |x' w' - x w| <= |x| dw + |w| dx + dx dw. bf16 rounds by 2^-8 of a number: half of the last of
// its 8 significant bits.
double format_bound(WeightFormat format, const Matrix& in, const Matrix& weight, int64_t token,
                    int64_t row) {
  const double magnitude = exact(in, weight, token, row).magnitude;
  if (format == WeightFormat::f32) {
    return rounding_bound(in.cols, magnitude);
  }
  if (format == WeightFormat::bf16) {
    return (0x1p-7 + 0x1p-16) * magnitude + rounding_bound(in.cols, 1.01 * magnitude);
  }
  const int64_t block = encoding(format).block == 0 ? in.cols : encoding(format).block;
  double bound = 0;
  double rounded_magnitude = 0;
  for (int64_t first = 0; first < in.cols; first += block) {
    const Range inputs(in, token, first, first + block);
    const Range weights(weight, row, first, first + block);
    // Terms of codes from the minimum on are larger than their weights.
    const double above_minimum = encoding(format).minimum ? 2 * weights.largest() : 0;
    for (int64_t col = first; col < std::min(first + block, in.cols); ++col) {
      const double x = std::fabs(static_cast<double>(in.at(token, col)));
      const double w = std::fabs(static_cast<double>(weight.at(row, col)));
      const Rounding error = rounding(format, x, w, inputs, weights);
      bound += x * error.weight + w * error.input + error.weight * error.input;
      rounded_magnitude += (x + error.input) * (w + error.weight + above_minimum);
    }
  }
  return bound + rounding_bound(in.cols, rounded_magnitude);
}

bool same_bits(const Matrix& a, const Matrix& b) {
  return a.values.size() == b.values.size() &&
         std::memcmp(a.values.data(), b.values.data(), a.values.size() * sizeof(float)) == 0;
}

struct Case {
  CpuIsa isa;
  WeightFormat format;
};

class Linear : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!cpu_supports(GetParam().isa)) {
      GTEST_SKIP() << "this machine has no " << name(GetParam().isa);
    }
    backend_ = &cpu_backend(GetParam().isa);
  }

  const Backend* backend_ = nullptr;
  WeightFormat format_ = GetParam().format;
  ThreadPool pool_{2};
  std::mt19937 random_{20250711};
};

TEST_P(Linear, StaysWithinTheErrorOfItsFormat) {
  for (const int64_t rows : kSizes) {
    for (const int64_t cols : kSizes) {
      SCOPED_TRACE(testing::Message() << rows << " outputs of " << cols << " inputs");
      const Matrix in = random_matrix(3, cols, random_);
      const Matrix weight = random_matrix(rows, cols, random_);
      const Matrix out = linear(*backend_, in, pack(*backend_, format_, weight), pool_);
      for (int64_t token = 0; token < in.rows; ++token) {
        for (int64_t row = 0; row < rows; ++row) {
          ASSERT_NEAR(out.at(token, row), exact(in, weight, token, row).value,
                      format_bound(format_, in, weight, token, row))
              << "token " << token << ", output " << row;
        }
      }
    }
  }
}

// On the same packed weights only the order of f32 additions may differ, and nothing for integers.
TEST_P(Linear, AgreesWithPlainLoopsOnTheSameWeights) {
  const Backend& scalar = cpu_backend(CpuIsa::scalar);
  for (const int64_t tokens : {1, 2, 5, 7, 12, 13, 31, 50}) {
    std::vector<int64_t> sizes(std::begin(kSizes), std::end(kSizes));
    if (tokens > 30) {
      sizes.push_back(1100);  // AMX has tiles of its own for many rows and inputs
    }
    for (const int64_t cols : sizes) {
      SCOPED_TRACE(testing::Message() << tokens << " tokens, " << cols << " inputs");
      const Matrix in = random_matrix(tokens, cols, random_);
      const Matrix weight = random_matrix(97, cols, random_);
      const Weight packed = pack(*backend_, format_, weight);
      const Matrix expected = linear(scalar, in, packed, pool_);
      const Matrix out = linear(*backend_, in, packed, pool_);
      if (encoding(format_).block > 0) {
        ASSERT_TRUE(same_bits(out, expected));
      }
      for (int64_t token = 0; token < tokens; ++token) {
        for (int64_t row = 0; row < weight.rows; ++row) {
          const double magnitude = exact(in, weight, token, row).magnitude;
          ASSERT_NEAR(out.at(token, row), expected.at(token, row),
                      1.2 * rounding_bound(cols, magnitude))
              << "token " << token << ", output " << row;
        }
      }
    }
  }
}

TEST_P(Linear, GivesARowTheSameBitsInAnyBatch) {
  for (const int64_t cols : {64, 172, 515, 2100}) {  // the last takes several stretches
    const Matrix in = random_matrix(200, cols, random_);
    const Weight weight = pack(*backend_, format_, random_matrix(75, cols, random_));
    const Matrix all = linear(*backend_, in, weight, pool_);
    for (const int64_t count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 25, 96, 97, 150}) {
      SCOPED_TRACE(testing::Message() << count << " rows of " << cols);
      const int64_t first = 200 - count;
      Matrix some(count, cols);
      const MatrixView<const float> part = in.slice(first, count);
      std::copy(part.data, part.data + count * cols, some.values.begin());
      const Matrix out = linear(*backend_, some, weight, pool_);
      Matrix expected(count, 75);
      std::copy(all.values.begin() + first * 75, all.values.end(), expected.values.begin());
      ASSERT_TRUE(same_bits(out, expected));
    }
  }
}

TEST_P(Linear, GivesTheSameBitsWithAnyNumberOfThreads) {
  const Matrix in = random_matrix(50, 300, random_);
  const Weight weight = pack(*backend_, format_, random_matrix(700, 300, random_));
  ThreadPool alone(1);
  const Matrix expected = linear(*backend_, in, weight, alone);
  for (const int threads : {2, 3, 7}) {
    ThreadPool pool(threads);
    ASSERT_TRUE(same_bits(linear(*backend_, in, weight, pool), expected)) << threads;
  }
}

TEST_P(Linear, AddsTheBiasAndThenWhatWasThere) {
  struct Shape {
    int64_t tokens;
    int64_t cols;
  };
  for (const auto& [tokens, cols] : {Shape{1, 64}, {9, 64}, {40, 64}, {40, 1100}}) {
    const Matrix in = random_matrix(tokens, cols, random_);
    const Weight weight = pack(*backend_, format_, random_matrix(83, cols, random_));
    const Matrix plain = linear(*backend_, in, weight, pool_);
    const Matrix before = random_matrix(tokens, 83, random_);
    const Matrix bias = random_matrix(1, 83, random_);
    const Matrix biased = linear(*backend_, in, weight, pool_, {.bias = bias.values});
    const Matrix added = linear(*backend_, in, weight, pool_,
                                {.bias = bias.values, .accumulate = true, .out = before});
    for (int64_t token = 0; token < tokens; ++token) {
      for (int64_t row = 0; row < 83; ++row) {
        ASSERT_EQ(biased.at(token, row), plain.at(token, row) + bias.at(0, row));
        ASSERT_EQ(added.at(token, row), before.at(token, row) + biased.at(token, row));
      }
    }
  }
}

TEST_P(Linear, WritesOnlyTheOutputsThereAre) {
  for (const int64_t tokens : {1, 20, 30}) {
    const int64_t cols = tokens == 30 ? 1100 : 40;
    const Matrix in = random_matrix(tokens, cols, random_);
    const Weight weight = pack(*backend_, format_, random_matrix(21, cols, random_));
    Matrix wide(tokens, 100);
    std::fill(wide.values.begin(), wide.values.end(), 7.0f);
    std::vector<std::byte> scratch(
        static_cast<size_t>(backend_->linear_scratch_bytes(tokens, cols)));
    backend_->linear({.in = in.view(),
                      .weight = &weight.packed,
                      .bias = {},
                      .accumulate = false,
                      .out = wide.view().columns(30, 21),
                      .scratch = scratch},
                     pool_.stream());
    const Matrix expected = linear(*backend_, in, weight, pool_);
    for (int64_t token = 0; token < tokens; ++token) {
      for (int64_t col = 0; col < 100; ++col) {
        const bool inside = col >= 30 && col < 51;
        ASSERT_EQ(wide.at(token, col), inside ? expected.at(token, col - 30) : 7.0f);
      }
    }
  }
}

TEST_P(Linear, TakesNoRows) {
  const Weight weight = pack(*backend_, format_, random_matrix(64, 64, random_));
  EXPECT_TRUE(linear(*backend_, Matrix(0, 64), weight, pool_).values.empty());
}

TEST_P(Linear, GivesZeroForZeros) {
  const Matrix some = random_matrix(2, 70, random_);
  const Matrix none(2, 70);
  const Matrix zero_out = linear(*backend_, none, pack(*backend_, format_, some), pool_);
  EXPECT_THAT(zero_out.values, testing::Each(0.0f));
  const Matrix zero_weight = linear(*backend_, some, pack(*backend_, format_, none), pool_);
  EXPECT_THAT(zero_weight.values, testing::Each(0.0f));
}

TEST_P(Linear, LetsANaNReachEveryOutputOfItsRowAndNoOther) {
  Matrix in = random_matrix(3, 70, random_);
  in.at(1, 69) = std::nanf("");
  const Matrix out =
      linear(*backend_, in, pack(*backend_, format_, random_matrix(33, 70, random_)), pool_);
  for (int64_t row = 0; row < 33; ++row) {
    EXPECT_FALSE(std::isnan(out.at(0, row)));
    EXPECT_TRUE(std::isnan(out.at(1, row)));
    EXPECT_FALSE(std::isnan(out.at(2, row)));
  }
}

// Weights of the outlier's block are zero, so only a scale that it shares could change an output.
TEST_P(Linear, KeepsAnOutlierToItsBlock) {
  const int64_t block = encoding(format_).block;
  if (block == 0) {
    GTEST_SKIP() << "no blocks";
  }
  Matrix weight = random_matrix(33, 3 * block, random_);
  for (int64_t row = 0; row < weight.rows; ++row) {
    std::fill_n(&weight.at(row, block), block, 0.0f);
  }
  Matrix in = random_matrix(9, 3 * block, random_);
  const Weight packed = pack(*backend_, format_, weight);
  const Matrix expected = linear(*backend_, in, packed, pool_);
  for (int64_t token = 0; token < in.rows; ++token) {
    in.at(token, block + token) = 1e4f;
  }
  EXPECT_TRUE(same_bits(linear(*backend_, in, packed, pool_), expected));
}

TEST_P(Linear, KeepsFiniteWhatIsBeyondItsRange) {
  Matrix in = random_matrix(1, 70, random_);
  in.at(0, 3) = 1e6f;
  in.at(0, 4) = -1e6f;
  const Matrix out =
      linear(*backend_, in, pack(*backend_, format_, random_matrix(33, 70, random_)), pool_);
  EXPECT_THAT(out.values, testing::Each(testing::Truly([](float x) { return std::isfinite(x); })));
}

TEST_P(Linear, PacksInPiecesAsAtOnce) {
  const Matrix matrix = random_matrix(200, 172, random_);
  const Weight whole = pack(*backend_, format_, matrix);
  Weight pieces(*backend_, format_, 200, 172);
  backend_->pack_weight(matrix.slice(128, 72), 128, pieces.packed);
  backend_->pack_weight(matrix.slice(0, 64), 0, pieces.packed);
  backend_->pack_weight(matrix.slice(64, 64), 64, pieces.packed);
  EXPECT_EQ(whole.bytes, pieces.bytes);
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const CpuIsa isa : {CpuIsa::scalar, CpuIsa::avx2, CpuIsa::avx512}) {
    for (const WeightFormat format : kWeightFormats) {
      cases.push_back({isa, format});
    }
  }
  return cases;
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  return std::string(name(info.param.isa)) + "_" + std::string(name(info.param.format));
}

INSTANTIATE_TEST_SUITE_P(Cpu, Linear, testing::ValuesIn(all_cases()), case_name);

TEST(PackedWeight, TakesTheBitsOfItsFormat) {
  const Backend& backend = cpu_backend(CpuIsa::scalar);
  EXPECT_EQ(backend.packed_weight_bytes(WeightFormat::f32, 128, 256), 128 * 256 * 4);
  EXPECT_EQ(backend.packed_weight_bytes(WeightFormat::bf16, 128, 256), 128 * 256 * 2);
  EXPECT_EQ(backend.packed_weight_bytes(WeightFormat::f16, 128, 256), 128 * 256 * 2);
  EXPECT_EQ(backend.packed_weight_bytes(WeightFormat::int8, 128, 256), 128 * 256 * 17 / 16);
  EXPECT_EQ(backend.packed_weight_bytes(WeightFormat::int4, 128, 256), 128 * 256 * 5 / 8);
  EXPECT_EQ(backend.packed_weight_bytes(WeightFormat::fp8, 128, 256), 128 * (256 + 4));
}

TEST(PackedWeightDeathTest, RefusesAPieceThatEndsBetweenPanels) {
  const Backend& backend = cpu_backend(CpuIsa::scalar);
  const Matrix matrix(200, 8);
  Weight weight(backend, WeightFormat::f32, 200, 8);
  EXPECT_DEATH(backend.pack_weight(matrix.slice(0, 65), 0, weight.packed), "between panels");
  EXPECT_DEATH(backend.pack_weight(matrix.slice(0, 64), 32, weight.packed), "between panels");
}

}  // namespace
}  // namespace tessera
