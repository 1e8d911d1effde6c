// Weights on the device: rounding of activations, and products compared with the CPU's plain loops.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/cpu/backend.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "kernels/cuda/linear/activations.h"
#include "kernels/e4m3.h"
#include "tests/kernels/device.h"

namespace tessera {
namespace {

class DeviceLinear : public testing::TestWithParam<Device> {
 protected:
  void wait() const { GetParam().wait(GetParam().stream); }
  std::vector<float> normal(int64_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) {
      value = normal(random_);
    }
    return values;
  }
  std::mt19937 random_{20261122};
};

TEST_P(DeviceLinear, RoundsActivationsToE4m3AsTheCpuDoes) {
  for (const int64_t cols : {1, 16, 255, 256, 257, 1000}) {
    const int64_t stride = cols + 3;
    std::vector<float> in = normal(4 * stride);
    std::fill_n(in.begin() + stride, cols, 0.0f);  // a row of zeros
    std::fill_n(in.begin() + 2 * stride, cols, 1e-3f);
    in[static_cast<size_t>(2 * stride)] = -700.0f;  // large compared with the others
    in[static_cast<size_t>(3 * stride)] = NAN;
    std::vector<uint8_t> codes(static_cast<size_t>(4 * cols), 0xee);
    std::vector<float> scales(4, -1);
    cuda::to_e4m3_rows({in.data(), 4, cols, stride}, codes.data(), scales.data(),
                       GetParam().stream);
    wait();
    EXPECT_EQ(scales[1], 0.0f);
    EXPECT_TRUE(std::isnan(scales[3])) << "a NaN reaches every output";
    for (int64_t row = 0; row < 3; ++row) {
      float largest = 0;
      for (int64_t i = 0; i < cols; ++i) {
        largest = std::max(largest, std::abs(in[static_cast<size_t>(row * stride + i)]));
      }
      const float inverse = largest > 0 ? 448.0f / largest : 0.0f;
      EXPECT_EQ(scales[static_cast<size_t>(row)], largest / 448.0f);
      for (int64_t i = 0; i < cols; ++i) {
        ASSERT_EQ(codes[static_cast<size_t>(row * cols + i)],
                  to_e4m3(in[static_cast<size_t>(row * stride + i)] * inverse).bits)
            << "row " << row << ", input " << i << " of " << cols;
      }
    }
  }
}

TEST_P(DeviceLinear, RoundsActivationsToF16AndKeepsThemFinite) {
  constexpr int64_t kCols = 300;
  std::vector<float> in = normal(2 * kCols);
  in[0] = 1e6f;
  in[1] = -1e6f;
  in[2] = 65519.0f;
  in[3] = 1e-7f;
  in[4] = NAN;
  std::vector<f16> halves(in.size());
  cuda::to_f16_rows({in.data(), 2, kCols, kCols}, halves.data(), GetParam().stream);
  wait();
  EXPECT_EQ(to_f32(halves[0]), 65504.0f);
  EXPECT_EQ(to_f32(halves[1]), -65504.0f);
  EXPECT_EQ(to_f32(halves[2]), 65504.0f);
  EXPECT_TRUE(std::isnan(to_f32(halves[4])));
  for (size_t i = 5; i < in.size(); ++i) {
    ASSERT_EQ(halves[i].bits, to_f16(in[i]).bits) << "input " << i;
  }
}

// Both factors are rounded alike, so only the order of f32 additions differs. An exception is a
// scaled value at the border of two codes: the divisions of CPU and device may round it
// differently. Hopper's products of E4M3 keep fewer bits of a sum: an H100 differed by 2^-15 of the
// sum of the terms' magnitudes.
TEST_P(DeviceLinear, MultipliesAsPlainLoopsDo) {
  const Backend& device = *GetParam().backend;
  const Backend& cpu = cpu_backend(CpuIsa::scalar);
  ThreadPool pool(1);
  constexpr int64_t kRows = 96;
  constexpr int64_t kCols = 144;
  for (const WeightFormat format : kWeightFormats) {
    if (device.packed_weight_bytes(format, kRows, kCols) == 0) {
      continue;
    }
    for (const int64_t tokens : {1, 7, 70}) {
      std::vector<float> in = normal(tokens * kCols);
      std::vector<float> weights = normal(kRows * kCols);
      std::vector<float> bias = normal(kRows);
      const auto product = [&](const Backend& backend, Stream stream) {
        std::vector<std::byte> memory(
            static_cast<size_t>(backend.packed_weight_bytes(format, kRows, kCols)));
        std::vector<std::byte> scratch(
            static_cast<size_t>(backend.linear_scratch_bytes(tokens, kCols)));
        const PackedWeight packed{format, kRows, kCols, memory.data()};
        std::vector<float> out(static_cast<size_t>(tokens * kRows), 0.5f);
        for (int64_t row = 0; row < kRows; row += kPackRows) {
          const int64_t rows = std::min(kPackRows, kRows - row);
          backend.pack_weight({weights.data() + row * kCols, rows, kCols, kCols}, row, packed);
        }
        backend.linear({.in = {in.data(), tokens, kCols, kCols},
                        .weight = &packed,
                        .bias = bias,
                        .accumulate = true,
                        .out = {out.data(), tokens, kRows, kRows},
                        .scratch = scratch},
                       stream);
        GetParam().wait(GetParam().stream);
        return out;
      };
      const std::vector<float> expected = product(cpu, pool.stream());
      const std::vector<float> out = product(device, GetParam().stream);
      // Standard normal factors: the terms of a sum have a mean magnitude of 2/pi.
      const double bound =
          format == WeightFormat::fp8 ? kCols * 0x1p-13 : kCols * (kCols + 8) * 0x1p-23;
      for (size_t i = 0; i < out.size(); ++i) {
        ASSERT_NEAR(out[i], expected[i], bound) << name(format) << ", " << tokens << " tokens";
      }
    }
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceLinear);  // for machines without a GPU
INSTANTIATE_TEST_SUITE_P(Devices, DeviceLinear, testing::ValuesIn(devices_of_this_machine()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace tessera
