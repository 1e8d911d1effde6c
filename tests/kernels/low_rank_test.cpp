// The op of adapters: against double precision, and against itself in other company.

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <random>
#include <vector>

#include "kernels/matrix/half.h"
#include "tests/kernels/device.h"
#include "tests/kernels/isas.h"

namespace tessera {
namespace {

constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

// A part of an adapter's product, with the first rank of its A.
struct PartOf {
  int64_t first_output = 0;
  int64_t outputs = 0;
  int64_t rank = 0;
  int64_t first_rank = 0;
};

// An adapter with random matrices, as the format stores them.
class AdapterOf {
 public:
  AdapterOf(const Backend& backend, WeightFormat format, int64_t inputs,
            const std::vector<PartOf>& parts, uint32_t seed) {
    std::mt19937 random(seed);
    int64_t ranks = 0;
    for (const PartOf& part : parts) ranks = std::max(ranks, part.first_rank + part.rank);
    product_.down = made(backend, {LowRankSide::narrows, format, ranks, inputs, nullptr}, random);
    for (const PartOf& part : parts) {
      product_.add(
          {.up = made(backend, {LowRankSide::widens, format, part.outputs, part.rank, nullptr},
                      random),
           .first_output = part.first_output,
           .first_rank = part.first_rank});
    }
  }

  const LowRankProduct& product() const { return product_; }

  // Adds B (A in) in double precision.
  void add_to(std::span<const float> in, std::span<double> out) const {
    const std::vector<double> low = times(numbers_.front(), {in.begin(), in.end()});
    for (int32_t i = 0; i < product_.count; ++i) {
      const LowRankProduct::Part& part = product_.parts[static_cast<size_t>(i)];
      const auto first = low.begin() + part.first_rank;
      const std::vector<double> added =
          times(numbers_[static_cast<size_t>(i) + 1], {first, first + part.up.cols});
      for (size_t j = 0; j < added.size(); ++j) {
        out[static_cast<size_t>(part.first_output) + j] += added[j];
      }
    }
  }

 private:
  LowRankMatrix made(const Backend& backend, LowRankMatrix matrix, std::mt19937& random) {
    numbers_.push_back(random_floats(random, matrix.rows * matrix.cols, 0.3f));
    std::vector<float>& numbers = numbers_.back();
    if (matrix.format == WeightFormat::bf16) {
      for (float& number : numbers) number = to_f32(to_bf16(number));
    }
    memory_.emplace_back(static_cast<size_t>(backend.low_rank_bytes(matrix)));
    matrix.data = memory_.back().data();
    backend.pack_low_rank({numbers.data(), matrix.rows, matrix.cols, matrix.cols}, matrix);
    return matrix;
  }

  static std::vector<double> times(const std::vector<float>& matrix,
                                   const std::vector<double>& in) {
    std::vector<double> out(matrix.size() / in.size());
    for (size_t i = 0; i < matrix.size(); ++i) {
      out[i / in.size()] += double{matrix[i]} * in[i % in.size()];
    }
    return out;
  }

  LowRankProduct product_;
  std::deque<std::vector<float>> numbers_;
  std::deque<std::vector<std::byte>> memory_;
};

// Rows of a step. Columns beyond the last are not numbers.
class RowsOf {
 public:
  RowsOf(int64_t rows, int64_t cols, uint32_t seed)
      : numbers_(static_cast<size_t>(rows * (cols + 5)), kNotANumber),
        view_{numbers_.data(), rows, cols, cols + 5} {
    std::mt19937 random(seed);
    for (int64_t row = 0; row < rows; ++row) {
      std::ranges::copy(random_floats(random, cols), view_.row(row).begin());
    }
  }
  RowsOf(const RowsOf&) = delete;
  RowsOf& operator=(const RowsOf&) = delete;

  const MatrixView<float>& view() const { return view_; }
  std::vector<float> row(int64_t index) const {
    return {view_.row(index).begin(), view_.row(index).end()};
  }

 private:
  std::vector<float> numbers_;
  MatrixView<float> view_;
};

struct Piece {
  const AdapterOf* adapter;
  int32_t first_row;
  int32_t count;
};

class LowRank : public testing::TestWithParam<Device> {
 protected:
  static constexpr int64_t kRanks = 40;

  const Backend& backend() const { return *GetParam().backend; }
  void run(const RowsOf& in, const RowsOf& out, const std::vector<Piece>& pieces) const {
    std::vector<LowRankRows> rows;
    int32_t low_rows = 0;
    for (const Piece& piece : pieces) {
      rows.push_back({&piece.adapter->product(), piece.first_row, piece.count, low_rows});
      low_rows += piece.count;
    }
    const RowsOf low(low_rows, kRanks, 9);
    backend().low_rank({.in = in.view(), .rows = rows, .low = low.view(), .out = out.view()},
                       GetParam().stream);
    GetParam().wait(GetParam().stream);
  }
};

constexpr WeightFormat kFormats[] = {WeightFormat::f32, WeightFormat::bf16};

TEST_P(LowRank, IsNearDoublePrecisionForEverySizeAndPart) {
  const std::vector<std::vector<PartOf>> shapes = {
      {{.outputs = 64, .rank = 16}},
      {{.outputs = 1, .rank = 1}},
      {{.first_output = 3, .outputs = 33, .rank = 7}},
      {{.outputs = 300, .rank = 4},
       {.first_output = 300, .outputs = 31, .rank = 4, .first_rank = 4}},
      // Parts of a fused module share its A.
      {{.outputs = 96, .rank = 5},
       {.first_output = 96, .outputs = 32, .rank = 5},
       {.first_output = 128, .outputs = 32, .rank = 5}}};
  for (const WeightFormat format : kFormats) {
    for (const int64_t inputs : {1, 31, 32, 100, 896}) {
      for (const std::vector<PartOf>& parts : shapes) {
        SCOPED_TRACE(testing::Message() << name(format) << " " << inputs << " inputs, "
                                        << parts.back().outputs << " outputs");
        const AdapterOf adapter(backend(), format, inputs, parts, 1);
        const RowsOf in(7, inputs, 2), out(7, 340, 3), before(7, 340, 3);
        run(in, out, {{&adapter, 1, 6}});
        EXPECT_EQ(out.row(0), before.row(0)) << "a row without an adapter";
        for (int64_t row = 1; row < 7; ++row) {
          const std::vector<float> old = before.row(row);
          std::vector<double> expected(old.begin(), old.end());
          adapter.add_to(in.view().row(row), expected);
          const std::vector<float> found = out.row(row);
          for (size_t i = 0; i < expected.size(); ++i) {
            ASSERT_NEAR(double{found[i]}, expected[i], 1e-4) << "row " << row << ", " << i;
          }
        }
      }
    }
  }
}

TEST_P(LowRank, GivesARowTheSameBitsAloneAndAmongRowsOfAnyAdapter) {
  constexpr int32_t kRows = 23;
  for (const WeightFormat format : kFormats) {
    const AdapterOf wide(backend(), format, 100, {{.outputs = 200, .rank = 18}}, 1);
    const AdapterOf narrow(backend(), format, 100, {{.first_output = 10, .outputs = 40, .rank = 3}},
                           2);
    const RowsOf in(kRows, 100, 3), together(kRows, 200, 4);
    run(in, together,
        {{&wide, 0, 1}, {&narrow, 1, 2}, {&wide, 3, 11}, {&narrow, 15, 5}, {&wide, 20, 3}});
    const RowsOf alone(kRows, 200, 4);
    for (int32_t row = 0; row < kRows; ++row) {
      const bool is_narrow = row == 1 || row == 2 || (row >= 15 && row < 20);
      if (row != 14) run(in, alone, {{is_narrow ? &narrow : &wide, row, 1}});
    }
    for (int32_t row = 0; row < kRows; ++row) {
      EXPECT_EQ(together.row(row), alone.row(row)) << name(format) << " row " << row;
    }
  }
}

TEST_P(LowRank, MovesNoNumberOfAnAdapterIntoAnother) {
  std::deque<AdapterOf> adapters;
  for (uint32_t i = 0; i < 16; ++i) {
    adapters.emplace_back(backend(), WeightFormat::bf16, 64,
                          std::vector<PartOf>{{.outputs = 32, .rank = int64_t{i} + 1}}, i);
  }
  const RowsOf in(16, 64, 1), out(16, 32, 2), before(16, 32, 2);
  std::vector<Piece> pieces;
  for (int32_t i = 0; i < 16; ++i) pieces.push_back({&adapters[static_cast<size_t>(i)], i, 1});
  run(in, out, pieces);
  for (int64_t row = 0; row < 16; ++row) {
    const std::vector<float> old = before.row(row);
    std::vector<double> expected(old.begin(), old.end());
    adapters[static_cast<size_t>(row)].add_to(in.view().row(row), expected);
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(double{out.row(row)[i]}, expected[i], 1e-5) << "row " << row << ", " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, LowRank, testing::ValuesIn(devices_of_this_machine()),
                         [](const auto& device) { return device.param.name; });

}  // namespace
}  // namespace tessera
