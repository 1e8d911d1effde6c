#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/kernels/device.h"
#include "tests/kernels/isas.h"

namespace tessera {
namespace {

class Ops : public testing::TestWithParam<Device> {
 protected:
  void embed(const EmbedArgs& args) const { run(device().backend->embed, args); }
  void rms_norm(const RmsNormArgs& args) const { run(device().backend->rms_norm, args); }
  void rope(const RopeArgs& args) const { run(device().backend->rope, args); }
  void silu_mul(const SiluMulArgs& args) const { run(device().backend->silu_mul, args); }

 private:
  const Device& device() const { return GetParam(); }
  template <class Args>
  void run(void (*op)(const Args&, Stream), const Args& args) const {
    op(args, device().stream);
    device().wait(device().stream);
  }
};

MatrixView<float> matrix(std::vector<float>& data, int64_t rows) {
  const int64_t cols = static_cast<int64_t>(data.size()) / rows;
  return {data.data(), rows, cols, cols};
}

TEST_P(Ops, EmbedCopiesRowsOfEitherTable) {
  std::vector<bf16> table;
  std::vector<float> table_f32;
  for (int i = 0; i < 12; ++i) {
    table.push_back(to_bf16(static_cast<float>(i)));
    table_f32.push_back(static_cast<float>(100 + i));
  }
  const std::vector<int32_t> tokens{3, 0, 3};
  std::vector<float> out(9);
  embed(
      {.tokens = tokens, .table = {table.data(), 4, 3, 3}, .table_f32 = {}, .out = matrix(out, 3)});
  EXPECT_EQ(out, (std::vector<float>{9, 10, 11, 0, 1, 2, 9, 10, 11}));
  embed({.tokens = tokens,
         .table = {},
         .table_f32 = {table_f32.data(), 4, 3, 3},
         .out = matrix(out, 3)});
  EXPECT_EQ(out, (std::vector<float>{109, 110, 111, 100, 101, 102, 109, 110, 111}));
}

TEST_P(Ops, RmsNormIsNearDoublePrecision) {
  std::mt19937 random(1);
  for (const int64_t hidden : {1, 7, 8, 15, 16, 17, 64, 127, 288, 1000, 4096}) {
    const int64_t rows = 5;
    std::vector<float> in = random_floats(random, rows * hidden);
    const std::vector<float> weight = random_floats(random, hidden);
    std::vector<float> out(in.size());
    rms_norm({.in = matrix(in, rows), .weight = weight, .out = matrix(out, rows)});
    for (int64_t row = 0; row < rows; ++row) {
      double sum = 0;
      for (int64_t i = 0; i < hidden; ++i) {
        sum += std::pow(double{in[static_cast<size_t>(row * hidden + i)]}, 2);
      }
      const double inverse = 1 / std::sqrt(sum / static_cast<double>(hidden) + double{1e-5f});
      // A sum of positive terms in 32 lanes or more: hidden / 32 roundings, and a few more.
      const double relative = (static_cast<double>(hidden) / 32 + 12) * 0x1p-24;
      for (int64_t i = 0; i < hidden; ++i) {
        const size_t at = static_cast<size_t>(row * hidden + i);
        const double expected = double{in[at]} * inverse * double{weight[static_cast<size_t>(i)]};
        ASSERT_NEAR(double{out[at]}, expected, relative * std::abs(expected)) << hidden << " " << i;
      }
    }
    const std::vector<float> apart = out;
    rms_norm({.in = matrix(in, rows), .weight = weight, .out = matrix(in, rows)});
    EXPECT_EQ(in, apart) << "in place, " << hidden << " columns";
  }
}

// The heads of q are columns of wider rows; the other columns must stay as they are.
TEST_P(Ops, RmsNormOfHeadsIsThatOfEachHeadAlone) {
  std::mt19937 random(4);
  const int64_t rows = 3, heads = 3;
  for (const int64_t head_dim : {8, 16, 40, 64, 128, 256}) {
    const int64_t others = 2 * head_dim + 5;
    const std::vector<float> weight = random_floats(random, head_dim);
    const std::vector<float> before = random_floats(random, rows * (heads * head_dim + others));
    std::vector<float> normed = before;
    const MatrixView<float> q = matrix(normed, rows).columns(0, heads * head_dim);
    rms_norm({.in = q, .weight = weight, .out = q});
    std::vector<float> expected = before;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t head = 0; head < heads; ++head) {
        float* first = matrix(expected, rows).row(row).data() + head * head_dim;
        const MatrixView<float> one{first, 1, head_dim, head_dim};
        rms_norm({.in = one, .weight = weight, .out = one});
      }
    }
    EXPECT_EQ(normed, expected) << "head_dim " << head_dim;
    EXPECT_NE(normed, before);
  }
}

TEST_P(Ops, RopeRotatesHalfSplitPairs) {
  std::mt19937 random(2);
  using Dims = std::pair<int32_t, int32_t>;
  for (const auto& [head_dim, rotary_dim] : {Dims{2, 2}, Dims{8, 8}, Dims{16, 12}, Dims{64, 64},
                                             Dims{80, 80}, Dims{128, 96}, Dims{128, 128}}) {
    const int64_t half = rotary_dim / 2;
    std::vector<float> cos, sin;
    for (int position = 0; position < 50; ++position) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle =
            position * std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
        cos.push_back(static_cast<float>(std::cos(angle)));
        sin.push_back(static_cast<float>(std::sin(angle)));
      }
    }
    const std::vector<int32_t> positions{0, 49, 17};
    const std::vector<float> before = random_floats(random, 3 * 2 * head_dim);
    std::vector<float> heads = before;
    rope({.heads = matrix(heads, 3),
          .positions = positions,
          .cos = cos.data(),
          .sin = sin.data(),
          .head_dim = head_dim,
          .rotary_dim = rotary_dim});
    for (int64_t row = 0; row < 3; ++row) {
      for (int64_t head = 0; head < 2; ++head) {
        for (int64_t i = rotary_dim; i < head_dim; ++i) {
          const size_t at = static_cast<size_t>((row * 2 + head) * head_dim + i);
          ASSERT_EQ(heads[at], before[at]) << "behind the rotated elements";
        }
        for (int64_t i = 0; i < half; ++i) {
          const size_t at = static_cast<size_t>((row * 2 + head) * head_dim + i);
          const size_t other = at + static_cast<size_t>(half);
          const size_t angle = static_cast<size_t>(positions[static_cast<size_t>(row)] * half + i);
          const double c = double{cos[angle]};
          const double s = double{sin[angle]};
          const double x = double{before[at]};
          const double y = double{before[other]};
          const double bound = 3 * 0x1p-24 * (std::abs(x) + std::abs(y));
          ASSERT_NEAR(double{heads[at]}, x * c - y * s, bound);
          ASSERT_NEAR(double{heads[other]}, y * c + x * s, bound);
        }
      }
    }
  }
}

// The exponential has a relative error of 2^-22.5. The addition of 1, the division and the product
// round once each.
TEST_P(Ops, SiluMulIsNearDoublePrecisionOverTheWholeRange) {
  std::vector<float> gate_up;
  for (float x = -86.9f; x < 87.9f; x += 0.0137f) {
    gate_up.push_back(x);
  }
  const int64_t width = static_cast<int64_t>(gate_up.size());
  for (int64_t i = 0; i < width; ++i) {
    gate_up.push_back(1.0f + static_cast<float>(i % 7));
  }
  std::vector<float> out(static_cast<size_t>(width));
  silu_mul({.gate_up = matrix(gate_up, 1), .out = matrix(out, 1)});
  double worst = 0;
  for (int64_t i = 0; i < width; ++i) {
    const double gate = double{gate_up[static_cast<size_t>(i)]};
    const double expected =
        gate / (1 + std::exp(-gate)) * double{gate_up[static_cast<size_t>(width + i)]};
    const double error = std::abs(double{out[static_cast<size_t>(i)]} - expected);
    worst = std::max(worst, error / std::max(std::abs(expected), 1e-30));
  }
  EXPECT_LT(worst, 0x1p-22 * 0.71 + 4 * 0x1p-24);
}

TEST_P(Ops, SiluMulHasNoInfinityAndKeepsNaN) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> gate_up{-1e30f, -100, 0, 100, 1e30f, NAN, -infinity, infinity,
                             1,      1,    1, 1,   1,     1,   1,         1};
  std::vector<float> out(8);
  silu_mul({.gate_up = matrix(gate_up, 1), .out = matrix(out, 1)});
  EXPECT_NEAR(out[1], 0, 1e-30);
  EXPECT_EQ(out[2], 0);
  EXPECT_EQ(out[3], 100);
  EXPECT_EQ(out[4], 1e30f);
  EXPECT_TRUE(std::isnan(out[5]));
  EXPECT_EQ(out[7], infinity);
}

// The bits of a row depend on the row alone, not on its place or on the thread.
TEST_P(Ops, RowsHaveTheSameBitsAloneAsInABatch) {
  std::mt19937 random(3);
  const int64_t cols = 1037;
  std::vector<float> in = random_floats(random, 40 * 2 * cols);
  const std::vector<float> weight = random_floats(random, 2 * cols);
  std::vector<float> normed(in.size());
  std::vector<float> gated(in.size() / 2);
  rms_norm({.in = matrix(in, 40), .weight = weight, .out = matrix(normed, 40)});
  silu_mul({.gate_up = matrix(in, 40), .out = matrix(gated, 40)});
  for (int64_t row = 0; row < 40; ++row) {
    std::vector<float> one(in.begin() + row * 2 * cols, in.begin() + (row + 1) * 2 * cols);
    std::vector<float> out(static_cast<size_t>(2 * cols));
    rms_norm({.in = matrix(one, 1), .weight = weight, .out = matrix(out, 1)});
    EXPECT_TRUE(std::equal(out.begin(), out.end(), normed.begin() + row * 2 * cols));
    out.resize(static_cast<size_t>(cols));
    silu_mul({.gate_up = matrix(one, 1), .out = matrix(out, 1)});
    EXPECT_TRUE(std::equal(out.begin(), out.end(), gated.begin() + row * cols));
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Ops);
INSTANTIATE_TEST_SUITE_P(Devices, Ops, testing::ValuesIn(devices_of_this_machine()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace tessera
