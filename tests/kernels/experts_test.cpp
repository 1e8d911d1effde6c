// Ops of a mixture of experts, and the arguments that models of other families add to row ops.

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <tuple>
#include <vector>

#include "tests/kernels/device.h"
#include "tests/kernels/isas.h"

namespace tessera {
namespace {

MatrixView<float> expert_matrix(std::vector<float>& data, int64_t rows) {
  const int64_t cols = static_cast<int64_t>(data.size()) / rows;
  return {data.data(), rows, cols, cols};
}

class RowsOfFamilies : public testing::TestWithParam<Device> {
 protected:
  template <class Args>
  void run(void (*Backend::*op)(const Args&, Stream), const Args& args) const {
    (GetParam().backend->*op)(args, GetParam().stream);
    GetParam().wait(GetParam().stream);
  }
};

TEST_P(RowsOfFamilies, EmbedAndRmsNormScaleTheirRows) {
  std::vector<float> table{1, 2, 3, 4};
  const std::vector<int32_t> tokens{1, 0};
  std::vector<float> out(4);
  run(&Backend::embed, EmbedArgs{.tokens = tokens,
                                 .table_f32 = expert_matrix(table, 2),
                                 .scale = 12,
                                 .out = expert_matrix(out, 2)});
  EXPECT_EQ(out, (std::vector<float>{36, 48, 12, 24}));
  std::vector<float> in{3, 4};
  const std::vector<float> weight{1, 2};
  std::vector<float> normed(2);
  run(&Backend::rms_norm, RmsNormArgs{.in = expert_matrix(in, 1),
                                      .weight = weight,
                                      .epsilon = 0,
                                      .scale = 0.5f,
                                      .out = expert_matrix(normed, 1)});
  EXPECT_NEAR(normed[0], 0.5 * 3 / std::sqrt(12.5), 1e-6);
  EXPECT_NEAR(normed[1], 0.5 * 2 * 4 / std::sqrt(12.5), 1e-6);
}

// The sum equals, bit for bit, the norm and then the addition. 19 columns end within a vector.
TEST_P(RowsOfFamilies, RmsNormAddsToItsRows) {
  constexpr size_t kWidth = 19;
  std::vector<float> in, weight, stream;
  for (size_t i = 0; i < 2 * kWidth; ++i) {
    in.push_back(static_cast<float>(i % 7) - 2.5f);
    stream.push_back(static_cast<float>(i) / 3);
  }
  for (size_t i = 0; i < kWidth; ++i) weight.push_back(1 + static_cast<float>(i) / 10);
  std::vector<float> normed(in.size());
  RmsNormArgs args{.in = expert_matrix(in, 2), .weight = weight, .out = expert_matrix(normed, 2)};
  run(&Backend::rms_norm, args);
  std::vector<float> expected = stream;
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += normed[i];
  args.accumulate = true;
  args.out = expert_matrix(stream, 2);
  run(&Backend::rms_norm, args);
  EXPECT_EQ(stream, expected);
}

TEST_P(RowsOfFamilies, GelusAreNearDoublePrecision) {
  std::vector<float> gate_up;
  for (float x = -9; x < 9; x += 0.037f) gate_up.push_back(x);
  const size_t width = gate_up.size();
  gate_up.resize(2 * width, 3);
  std::vector<float> out(width);
  for (const Activation activation : {Activation::gelu, Activation::gelu_tanh}) {
    run(&Backend::silu_mul, SiluMulArgs{.gate_up = expert_matrix(gate_up, 1),
                                        .out = expert_matrix(out, 1),
                                        .activation = activation});
    for (size_t i = 0; i < width; ++i) {
      const double x = double{gate_up[i]};
      const double inner = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
      const double part =
          activation == Activation::gelu ? std::erf(x / std::sqrt(2)) : std::tanh(inner);
      EXPECT_NEAR(double{out[i]}, 3 * x / 2 * (1 + part), 3e-6) << x;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, RowsOfFamilies, testing::ValuesIn(devices_of_this_machine()),
                         [](const auto& device) { return device.param.name; });

class Experts : public RowsOfFamilies {
 protected:
  void SetUp() override {
    if (GetParam().backend->route == nullptr) GTEST_SKIP() << "no kernels for experts";
  }
};

struct Routed {
  explicit Routed(int64_t tokens, size_t experts, int32_t chosen)
      : offsets(experts + 1),
        row_tokens(static_cast<size_t>(tokens * chosen)),
        places(row_tokens.size()),
        weights(row_tokens.size()) {}
  ExpertRows rows() { return {offsets, row_tokens, places, weights}; }

  std::vector<int32_t> offsets, row_tokens, places;
  std::vector<float> weights;
};

TEST_P(Experts, RouteGroupsRowsByExpertAndTakesTheFirstOfEqualLogits) {
  // The first token chooses 1 and 3, the second 0 and 1 (all equal), the third 2 and 3.
  std::vector<float> logits{0, 5, 1, 4, 2, 2, 2, 2, -1, -2, 7, 6};
  Routed routed(3, 4, 2);
  run(&Backend::route, RouteArgs{.logits = expert_matrix(logits, 3),
                                 .chosen = 2,
                                 .normalise = true,
                                 .rows = routed.rows()});
  EXPECT_EQ(routed.offsets, (std::vector<int32_t>{0, 1, 3, 4, 6}));
  EXPECT_EQ(routed.row_tokens, (std::vector<int32_t>{1, 0, 1, 2, 0, 2}));
  EXPECT_EQ(routed.places, (std::vector<int32_t>{1, 4, 0, 2, 3, 5}));
  EXPECT_NEAR(routed.weights[0], 1 / (1 + std::exp(-1.0)), 1e-6);
  EXPECT_NEAR(routed.weights[2], 0.5, 1e-6);
  EXPECT_NEAR(routed.weights[4] + routed.weights[5], 1, 1e-6);
}

TEST_P(Experts, ARankHasTheRowsOfItsExpertsAndSharesOfAllLogits) {
  std::vector<float> logits{0, 5, 1, 4};
  Routed routed(1, 2, 2);
  run(&Backend::route, RouteArgs{.logits = expert_matrix(logits, 1),
                                 .chosen = 2,
                                 .first_expert = 2,
                                 .rows = routed.rows()});
  EXPECT_EQ(routed.offsets, (std::vector<int32_t>{0, 0, 1}));
  EXPECT_EQ(routed.places, (std::vector<int32_t>{-1, 0}));
  const double sum = std::exp(0.0) + std::exp(5.0) + std::exp(1.0) + std::exp(4.0);
  EXPECT_NEAR(routed.weights[1], std::exp(4.0) / sum, 1e-6);
}

TEST_P(Experts, RouteTakesEachExpertOnceWhereLogitsAreNaN) {
  std::vector<float> logits{NAN, NAN, NAN, 1};
  Routed routed(1, 4, 3);
  run(&Backend::route,
      RouteArgs{.logits = expert_matrix(logits, 1), .chosen = 3, .rows = routed.rows()});
  EXPECT_EQ(routed.offsets, (std::vector<int32_t>{0, 1, 2, 2, 3}));
}

TEST_P(Experts, ProductsHaveTheBitsOfLinear) {
  constexpr int64_t kIn = 64;
  constexpr int64_t kOut = 96;
  const Backend& backend = *GetParam().backend;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  const auto numbers = [&](int64_t count) {
    std::vector<float> all(static_cast<size_t>(count));
    for (float& one : all) one = normal(random);
    return all;
  };
  for (const WeightFormat format : {WeightFormat::f32, WeightFormat::bf16, WeightFormat::int8}) {
    const int64_t bytes = backend.packed_weight_bytes(format, kOut, kIn);
    std::vector<std::vector<float>> memory;  // aligned to 64 bytes below
    std::vector<StackedWeight> weights(3);
    for (StackedWeight& weight : weights) {
      memory.emplace_back(static_cast<size_t>(bytes / 4 + 32));
      auto at = reinterpret_cast<uintptr_t>(memory.back().data());
      at = (at + 63) / 64 * 64;
      weight.add({format, kOut, kIn, reinterpret_cast<std::byte*>(at)});
      std::vector<float> source = numbers(kOut * kIn);
      for (int64_t row = 0; row < kOut; row += kPackRows) {
        const int64_t rows = std::min(kPackRows, kOut - row);
        backend.pack_weight({source.data() + row * kIn, rows, kIn, kIn}, row, weight.parts[0]);
      }
    }
    const std::vector<int32_t> offsets{0, 2, 2, 5};
    std::vector<float> in = numbers(5 * kIn);
    std::vector<float> out(5 * kOut), expected(5 * kOut);
    std::vector<std::byte> scratch(static_cast<size_t>(backend.linear_scratch_bytes(5, kIn)) + 64);
    void* first = scratch.data();
    size_t space = scratch.size();
    std::align(64, scratch.size() - 64, first, space);
    const std::span<std::byte> aligned(static_cast<std::byte*>(first), space);
    run(&Backend::expert_linear, ExpertLinearArgs{.in = expert_matrix(in, 5),
                                                  .offsets = offsets,
                                                  .weights = weights,
                                                  .out = expert_matrix(out, 5),
                                                  .scratch = aligned});
    for (const auto& [expert, row, count] : {std::tuple{0, 0, 2}, std::tuple{2, 2, 3}}) {
      run(&Backend::linear, LinearArgs{.in = expert_matrix(in, 5).rows_from(row, count),
                                       .weight = &weights[static_cast<size_t>(expert)].parts[0],
                                       .bias = {},
                                       .out = expert_matrix(expected, 5).rows_from(row, count),
                                       .scratch = aligned});
    }
    EXPECT_EQ(out, expected) << name(format);
  }
}

TEST_P(Experts, CombineAddsTheRowsOfThisRankAlone) {
  std::vector<float> in{1, 2, 10, 20};
  const std::vector<int32_t> places{1, 0, -1, 0};
  const std::vector<float> weights{0.5f, 2, 9, 3};
  std::vector<float> out{100, 100, 100, 100};
  for (const bool accumulate : {true, false}) {
    run(&Backend::combine, CombineArgs{.in = expert_matrix(in, 2),
                                       .places = places,
                                       .weights = weights,
                                       .chosen = 2,
                                       .accumulate = accumulate,
                                       .out = expert_matrix(out, 2)});
    const float before = accumulate ? 100 : 0;
    EXPECT_EQ(out, (std::vector<float>{before + 7, before + 14, before + 3, before + 6}));
  }
}

TEST_P(Experts, CombineAddsTheExpertOfEveryTokenLast) {
  std::vector<float> in{1, 2};
  const std::vector<int32_t> places{0, -1};
  const std::vector<float> weights{0.5f, 1};
  std::vector<float> shared{4, 8, 16, 32};
  // Gates may be a column of a wider matrix, such as the router's logits.
  std::vector<float> logits{7, 0, 7, std::log(3.0f)};
  std::vector<float> out{100, 100, 100, 100};
  CombineArgs args{.in = expert_matrix(in, 1),
                   .places = places,
                   .weights = weights,
                   .chosen = 1,
                   .shared = expert_matrix(shared, 2),
                   .out = expert_matrix(out, 2)};
  run(&Backend::combine, args);
  EXPECT_EQ(out, (std::vector<float>{4.5f, 9, 16, 32}));
  args.shared_gates = expert_matrix(logits, 2).columns(1, 1);
  args.accumulate = true;
  run(&Backend::combine, args);
  const std::vector<float> expected{4.5f + 0.5f + 2, 9 + 1 + 4, 16 + 12, 32 + 24};
  for (size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out[i], expected[i], 1e-5) << i;
}

INSTANTIATE_TEST_SUITE_P(All, Experts, testing::ValuesIn(devices_of_this_machine()),
                         [](const auto& device) { return device.param.name; });

}  // namespace
}  // namespace tessera
