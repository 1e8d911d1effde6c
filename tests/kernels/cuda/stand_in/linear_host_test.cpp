// Products by the real host code of cublas.cpp, over a stand-in for cuBLASLt.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string_view>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/stream/cuda_stream.h"
#include "tests/kernels/cuda/stand_in/blas.h"
#include "tests/kernels/cuda/stand_in/runtime.h"

namespace tessera::cuda {
namespace {

using stand_in::Order;

// Each test has weights of its own number of rows, because an algorithm is chosen once for a shape.
class CudaLinear : public testing::Test {
 protected:
  void TearDown() override { stand_in::suggest({Order::by_inputs}, true); }

  std::vector<float> normal(int64_t count) {
    std::normal_distribution<float> of;
    std::vector<float> values(static_cast<size_t>(count));
    std::generate(values.begin(), values.end(), [&] { return of(random_); });
    return values;
  }
  DeviceBytes on_device(const std::vector<float>& values) {
    DeviceBytes memory = allocate(device_memory(), std::ssize(values) * 4);
    device_memory().upload(memory.get(), values.data(), std::ssize(values) * 4);
    return memory;
  }
  PackedWeight pack(WeightFormat format, int64_t rows, const std::vector<float>& weights) {
    const int64_t bytes = ops_.packed_weight_bytes(format, rows, kCols);
    EXPECT_GT(bytes, 0);
    memory_.push_back(allocate(device_memory(), bytes));
    const PackedWeight packed{format, rows, kCols, memory_.back().get()};
    for (int64_t row = 0; row < rows; row += 16) {
      ops_.pack_weight({weights.data() + row * kCols, 16, kCols, kCols}, row, packed);
    }
    return packed;
  }
  std::vector<float> multiply(const PackedWeight& weight, const std::vector<float>& in,
                              const std::vector<float>& bias, bool accumulate) {
    const int64_t tokens = std::ssize(in) / kCols;
    const DeviceBytes in_memory = on_device(in);
    const DeviceBytes bias_memory = on_device(bias);
    std::vector<float> out(static_cast<size_t>(tokens * weight.rows), 0.5f);
    const DeviceBytes out_memory = on_device(out);
    const int64_t scratch_bytes = ops_.linear_scratch_bytes(tokens, kCols);
    const DeviceBytes scratch = allocate(device_memory(), scratch_bytes);
    ops_.linear(
        {.in = {reinterpret_cast<float*>(in_memory.get()), tokens, kCols, kCols},
         .weight = &weight,
         .bias = {reinterpret_cast<float*>(bias_memory.get()), bias.size()},
         .accumulate = accumulate,
         .out = {reinterpret_cast<float*>(out_memory.get()), tokens, weight.rows, weight.rows},
         .scratch = {scratch.get(), static_cast<size_t>(scratch_bytes)}},
        stream_.stream());
    stream_.download(out.data(), out_memory.get(), out.size() * 4);
    return out;
  }

  static constexpr int64_t kCols = 48;
  const LinearOps ops_ = linear_ops();
  CudaStream stream_;
  std::vector<DeviceBytes> memory_;
  std::mt19937 random_{28};
};

TEST_F(CudaLinear, MultipliesEveryFormatAsTheCpuDoes) {
  constexpr int64_t kRows = 32;
  const Backend& cpu = cpu_backend(CpuIsa::scalar);
  ThreadPool pool(1);
  for (const WeightFormat format :
       {WeightFormat::f32, WeightFormat::bf16, WeightFormat::f16, WeightFormat::fp8}) {
    const std::vector<float> weights = normal(kRows * kCols);
    const std::vector<float> bias = normal(kRows);
    const PackedWeight packed = pack(format, kRows, weights);
    std::vector<std::byte> memory(
        static_cast<size_t>(cpu.packed_weight_bytes(format, kRows, kCols)));
    const PackedWeight on_host{format, kRows, kCols, memory.data()};
    for (int64_t row = 0; row < kRows; row += kPackRows) {
      cpu.pack_weight(
          {weights.data() + row * kCols, std::min(kPackRows, kRows - row), kCols, kCols}, row,
          on_host);
    }
    for (const int64_t tokens : {1, 70}) {
      const std::vector<float> in = normal(tokens * kCols);
      std::vector<float> expected(static_cast<size_t>(tokens * kRows), 0.5f);
      std::vector<std::byte> scratch(static_cast<size_t>(cpu.linear_scratch_bytes(tokens, kCols)));
      cpu.linear({.in = {in.data(), tokens, kCols, kCols},
                  .weight = &on_host,
                  .bias = bias,
                  .accumulate = true,
                  .out = {expected.data(), tokens, kRows, kRows},
                  .scratch = scratch},
                 pool.stream());
      const std::vector<float> out = multiply(packed, in, bias, true);
      for (size_t i = 0; i < out.size(); ++i) {
        ASSERT_NEAR(out[i], expected[i], kCols * (kCols + 8) * 0x1p-23) << name(format);
      }
    }
  }
}

// The scratch begins at any address that its owner's alignment allows.
TEST_F(CudaLinear, MultipliesRowsThatANormHasRoundedAsRowsThatItRounds) {
  constexpr int64_t kRows = 48;
  const std::vector<float> gain = normal(kCols);
  const DeviceBytes gain_memory = on_device(gain);
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::f16, WeightFormat::fp8}) {
    const PackedWeight packed = pack(format, kRows, normal(kRows * kCols));
    for (const int64_t tokens : {1, 70}) {
      const DeviceBytes in = on_device(normal(tokens * kCols));
      const int64_t bytes = ops_.linear_scratch_bytes(tokens, kCols);
      const DeviceBytes memory = allocate(device_memory(), bytes + 64);
      const std::span<std::byte> scratch{memory.get() + 64, static_cast<size_t>(bytes)};
      const auto product = [&](bool ahead) {
        const DeviceBytes normed = on_device(std::vector<float>(tokens * kCols, NAN));
        const DeviceBytes out = on_device(std::vector<float>(tokens * kRows, 0.5f));
        const MatrixView<float> rows{reinterpret_cast<float*>(normed.get()), tokens, kCols, kCols};
        rms_norm({.in = {reinterpret_cast<float*>(in.get()), tokens, kCols, kCols},
                  .weight = {reinterpret_cast<float*>(gain_memory.get()), gain.size()},
                  .out = rows,
                  .rounded = ahead ? RoundedRows{format, scratch} : RoundedRows{}},
                 stream_.stream());
        ops_.linear({.in = rows,
                     .weight = &packed,
                     .bias = {},
                     .accumulate = true,
                     .out = {reinterpret_cast<float*>(out.get()), tokens, kRows, kRows},
                     .scratch = scratch,
                     .rounded = ahead},
                    stream_.stream());
        std::vector<float> result(static_cast<size_t>(tokens * kRows));
        stream_.download(result.data(), out.get(), result.size() * 4);
        return result;
      };
      const std::vector<float> ahead = product(true);
      EXPECT_EQ(ahead, product(false)) << name(format) << ", " << tokens << " tokens";
      EXPECT_NE(ahead, std::vector<float>(ahead.size(), 0.5f));
    }
  }
}

TEST_F(CudaLinear, TakesTheFirstAlgorithmWithTheSameBitsForEveryNumberOfRows) {
  constexpr int64_t kRows = 64;
  stand_in::suggest({Order::much_workspace, Order::few_tokens, Order::by_tokens, Order::by_inputs},
                    true);
  const PackedWeight packed = pack(WeightFormat::f32, kRows, normal(kRows * kCols));
  stand_in::take_products(Order::by_inputs);
  stand_in::take_products(Order::by_tokens);
  const std::vector<float> in = normal(100 * kCols);
  const std::vector<float> all = multiply(packed, in, std::vector<float>(kRows), false);
  const std::vector<float> one =
      multiply(packed, {in.begin(), in.begin() + kCols}, std::vector<float>(kRows), false);
  EXPECT_TRUE(std::equal(one.begin(), one.end(), all.begin()));
  EXPECT_EQ(stand_in::take_products(Order::by_inputs), 2);
  EXPECT_EQ(stand_in::take_products(Order::by_tokens), 0);
}

TEST_F(CudaLinear, ServesFp8IfTheHeuristicHasAProduct) {
  EXPECT_GT(ops_.packed_weight_bytes(WeightFormat::fp8, 80, kCols), 0);
  stand_in::suggest({Order::by_inputs}, false);
  EXPECT_EQ(ops_.packed_weight_bytes(WeightFormat::fp8, 96, kCols), 0);
  EXPECT_GT(ops_.packed_weight_bytes(WeightFormat::bf16, 96, kCols), 0);
}

TEST_F(CudaLinear, ServesFloatsOfAFormatWithoutGroupsAlone) {
  std::vector<std::string_view> served;
  for (const WeightFormatLine& line : kWeightFormatTable) {
    if (ops_.packed_weight_bytes(line.format, 128, kCols) > 0) {
      served.push_back(line.name);
    }
  }
  EXPECT_THAT(served, testing::ElementsAre("f32", "bf16", "f16", "fp8"));
}

TEST_F(CudaLinear, ServesNoShapeThatEveryAlgorithmRefuses) {
  stand_in::suggest({Order::few_tokens, Order::much_workspace}, true);
  EXPECT_EQ(ops_.packed_weight_bytes(WeightFormat::bf16, 112, kCols), 0);
}

using CudaLinearDeath = CudaLinear;

TEST_F(CudaLinearDeath, RefusesAlgorithmsWhoseBitsDependOnTheRows) {
  constexpr int64_t kRows = 160;  // a shape without an algorithm yet
  stand_in::suggest({Order::by_tokens}, true);
  EXPECT_DEATH(pack(WeightFormat::f32, kRows, normal(kRows * kCols)), "the same bits");
}

TEST_F(CudaLinear, LeavesNoMemoryOfItsProof) {
  constexpr int64_t kRows = 144;
  const size_t before = stand_in::living();
  pack(WeightFormat::bf16, kRows, normal(kRows * kCols));
  memory_.clear();
  EXPECT_EQ(stand_in::living(), before);
}

}  // namespace
}  // namespace tessera::cuda
