// Weights on the device: rounding of activations, and products compared with the CPU's plain loops.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "kernels/cuda/linear/activations.h"
#include "kernels/matrix/e4m3.h"
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
    cuda::round_rows(WeightFormat::fp8, {in.data(), 4, cols, stride},
                     {codes.data(), cols, scales.data()}, GetParam().stream);
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
  cuda::round_rows(WeightFormat::f16, {in.data(), 2, kCols, kCols}, {halves.data(), kCols},
                   GetParam().stream);
  wait();
  EXPECT_EQ(to_f32(halves[0]), 65504.0f);
  EXPECT_EQ(to_f32(halves[1]), -65504.0f);
  EXPECT_EQ(to_f32(halves[2]), 65504.0f);
  EXPECT_TRUE(std::isnan(to_f32(halves[4])));
  for (size_t i = 5; i < in.size(); ++i) {
    ASSERT_EQ(halves[i].bits, to_f16(in[i]).bits) << "input " << i;
  }
}

// A row as a device writes it for products, and the product.
struct Rounded {
  std::vector<std::byte> rows;
  std::vector<float> scales;  // of fp8
  std::vector<float> product;
};

class DeviceRounding : public DeviceLinear {
 protected:
  // Calls put(out, rounded), which writes `tokens` rows of `cols` columns to one of both, and
  // multiplies them.
  template <class Put>
  Rounded multiply(const PackedWeight& weight, int64_t tokens, bool ahead, const Put& put) {
    const Backend& device = *GetParam().backend;
    const WeightFormat format = weight.format;
    std::vector<std::byte> scratch(
        static_cast<size_t>(device.linear_scratch_bytes(tokens, weight.cols)), std::byte{0xee});
    std::vector<float> rows(static_cast<size_t>(tokens * weight.cols), -7.0f);
    const std::vector<float> untouched = rows;
    const MatrixView<float> in{rows.data(), tokens, weight.cols, weight.cols};
    put(in, ahead ? RoundedRows{format, scratch} : RoundedRows{});
    Rounded made{.rows = {},
                 .scales = {},
                 .product = std::vector<float>(static_cast<size_t>(tokens * weight.rows), 0.5f)};
    device.linear({.in = in,
                   .weight = &weight,
                   .bias = {},
                   .accumulate = true,
                   .out = {made.product.data(), tokens, weight.rows, weight.rows},
                   .scratch = scratch,
                   .rounded = ahead},
                  GetParam().stream);
    wait();
    EXPECT_EQ(rows == untouched, ahead) << "rows in f32 that nothing reads";
    const cuda::ActivationRows at = cuda::rounded_rows(scratch, tokens, weight.cols);
    const auto* first = static_cast<const std::byte*>(at.rows);
    made.rows = {first, first + tokens * weight.cols * (format == WeightFormat::fp8 ? 1 : 2)};
    if (format == WeightFormat::fp8) {
      made.scales = {at.scales, at.scales + tokens};
    }
    return made;
  }

  // Calls visit(weight) for a weight of each format whose activations are rounded.
  template <class Visit>
  void each_weight(int64_t cols, const Visit& visit) {
    constexpr int64_t kRows = 16;
    const Backend& device = *GetParam().backend;
    for (const WeightFormat format : kWeightFormats) {
      const int64_t bytes = device.packed_weight_bytes(format, kRows, cols);
      if (bytes == 0 || !device.rounds_ahead(format)) {
        continue;
      }
      std::vector<std::byte> memory(static_cast<size_t>(bytes));
      const std::vector<float> weights = normal(kRows * cols);
      const PackedWeight packed{format, kRows, cols, memory.data()};
      device.pack_weight({weights.data(), kRows, cols, cols}, 0, packed);
      SCOPED_TRACE(testing::Message() << name(format) << ", " << cols << " columns");
      visit(packed);
    }
  }

  static void expect_same_bits(const Rounded& ahead, const Rounded& later) {
    EXPECT_EQ(ahead.rows, later.rows);
    expect_same_floats(ahead.scales, later.scales);
    expect_same_floats(ahead.product, later.product);
  }
  static void expect_same_floats(const std::vector<float>& a, const std::vector<float>& b) {
    ASSERT_EQ(a.size(), b.size());
    EXPECT_TRUE(a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
  }

  // Rows whose second one is zero, and whose third one has a NaN and a large number.
  std::vector<float> rows_of(int64_t cols) {
    std::vector<float> in = normal(3 * cols);
    std::fill_n(in.begin() + cols, cols, 0.0f);
    in[static_cast<size_t>(2 * cols)] = NAN;
    in[static_cast<size_t>(3 * cols - 1)] = 3e7f;
    return in;
  }
};

TEST_P(DeviceRounding, NormsAreRoundedForAProductToTheBitsThatItRoundsTo) {
  for (const int64_t cols : {16, 144, 272, 1040}) {
    std::vector<float> in = rows_of(cols);
    in[static_cast<size_t>(2 * cols)] = 1.0f;  // a NaN of the input would be one of the whole row
    std::vector<float> weight = normal(cols);
    weight[1] = 1e6f;
    each_weight(cols, [&](const PackedWeight& packed) {
      const auto norm = [&](const MatrixView<float>& out, const RoundedRows& rounded) {
        GetParam().backend->rms_norm({.in = {in.data(), 3, cols, cols},
                                      .weight = weight,
                                      .scale = 0.7f,
                                      .out = out,
                                      .rounded = rounded},
                                     GetParam().stream);
      };
      expect_same_bits(multiply(packed, 3, true, norm), multiply(packed, 3, false, norm));
    });
  }
}

// Blocks divide a row of fp8 in another way. 2080 columns are more than a block has threads.
TEST_P(DeviceRounding, GatedRowsAreRoundedForAProductToTheBitsThatItRoundsTo) {
  for (const int64_t cols : {16, 144, 1024, 2080}) {
    const std::vector<float> gate_up = rows_of(2 * cols);
    for (const Activation activation :
         {Activation::silu, Activation::gelu, Activation::gelu_tanh}) {
      each_weight(cols, [&](const PackedWeight& packed) {
        const auto gate = [&](const MatrixView<float>& out, const RoundedRows& rounded) {
          GetParam().backend->silu_mul({.gate_up = {gate_up.data(), 3, 2 * cols, 2 * cols},
                                        .out = out,
                                        .activation = activation,
                                        .rounded = rounded},
                                       GetParam().stream);
        };
        expect_same_bits(multiply(packed, 3, true, gate), multiply(packed, 3, false, gate));
      });
    }
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

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceRounding);  // for machines without a GPU
INSTANTIATE_TEST_SUITE_P(Devices, DeviceRounding, testing::ValuesIn(devices_of_this_machine()),
                         [](const auto& instance) { return instance.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceLinear);
INSTANTIATE_TEST_SUITE_P(Devices, DeviceLinear, testing::ValuesIn(devices_of_this_machine()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace tessera
