// Weights packed from integers: looked up exactly, and multiplied with no error but that of the
// activations.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "kernels/matrix/e4m3.h"
#include "tests/kernels/random_codes.h"

namespace tessera {
namespace {

constexpr uint32_t kSeed = 20261123;

struct Packed {
  std::vector<std::byte> bytes;
  PackedWeight weight;

  Packed(const Backend& backend, WeightFormat format, int64_t rows, int64_t cols)
      : bytes(static_cast<size_t>(backend.packed_weight_bytes(format, rows, cols)),
              std::byte{0xa5}),
        weight{format, rows, cols, bytes.data()} {}
  Packed(const Backend& backend, const RandomCodes& codes)
      : Packed(backend, codes.format, codes.rows, codes.cols) {
    backend.pack_codes(codes.view(), 0, weight);
  }
};

std::vector<float> random_floats(int64_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  std::generate(values.begin(), values.end(), [&] { return normal(random); });
  return values;
}

struct Case {
  CpuIsa isa;
  WeightFormat format;
};

class CodedWeight : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!cpu_supports(GetParam().isa)) {
      GTEST_SKIP() << "this machine has no " << name(GetParam().isa);
    }
    backend_ = &cpu_backend(GetParam().isa);
  }

  // Returns: [tokens, weight.rows]
  std::vector<float> linear(const Backend& backend, const std::vector<float>& in,
                            const PackedWeight& weight, ThreadPool& pool) {
    const auto tokens = std::ssize(in) / weight.cols;
    std::vector<float> out(static_cast<size_t>(tokens * weight.rows), std::nanf(""));
    std::vector<std::byte> scratch(
        static_cast<size_t>(backend.linear_scratch_bytes(tokens, weight.cols)));
    backend.linear({.in = {in.data(), tokens, weight.cols, weight.cols},
                    .weight = &weight,
                    .bias = {},
                    .accumulate = false,
                    .out = {out.data(), tokens, weight.rows, weight.rows},
                    .scratch = scratch},
                   pool.stream());
    return out;
  }

  const Backend* backend_ = nullptr;
  WeightFormat format_ = GetParam().format;
  ThreadPool pool_{2};
  std::mt19937 random_{kSeed};
};

TEST_P(CodedWeight, IsLookedUpAsItsEncodingDescribesIt) {
  const RandomCodes codes(format_, 71, 512, random_);
  const Packed packed(*backend_, codes);
  const std::vector<int32_t> tokens = {0, 70, 31, 32, 31, 63};
  std::vector<float> out(tokens.size() * 512);
  ASSERT_TRUE(backend_->looks_up(format_));
  backend_->embed({.tokens = tokens,
                   .packed = &packed.weight,
                   .out = {out.data(), std::ssize(tokens), 512, 512}},
                  pool_.stream());
  for (size_t i = 0; i < tokens.size(); ++i) {
    for (int64_t col = 0; col < 512; ++col) {
      ASSERT_EQ(out[i * 512 + static_cast<size_t>(col)], codes.weight(tokens[i], col))
          << "row " << tokens[i] << ", input " << col;
    }
  }
}

// An activation is rounded by half a step of its block's largest / 127.
TEST_P(CodedWeight, IsMultipliedWithTheErrorOfTheActivationsAlone) {
  const int64_t block = encoding(format_).block;
  for (const int64_t cols : {256, 768}) {
    const RandomCodes codes(format_, 65, cols, random_);
    const Packed packed(*backend_, codes);
    const std::vector<float> in = random_floats(3 * cols, random_);
    const std::vector<float> out = linear(*backend_, in, packed.weight, pool_);
    for (int64_t token = 0; token < 3; ++token) {
      for (int64_t row = 0; row < 65; ++row) {
        double exact = 0;
        double bound = 0;
        double magnitude = 0;
        for (int64_t first = 0; first < cols; first += block) {
          double largest = 0;
          double weights = 0;
          for (int64_t i = first; i < first + block; ++i) {
            const double x = in[static_cast<size_t>(token * cols + i)];
            exact += x * codes.weight(row, i);
            largest = std::max(largest, std::fabs(x));
            weights += std::fabs(codes.weight(row, i));
          }
          bound += weights * largest / 254 * 1.0001;
          magnitude += weights * largest;
        }
        ASSERT_NEAR(out[static_cast<size_t>(token * 65 + row)], exact, bound + 1e-5 * magnitude)
            << "token " << token << ", output " << row << " of " << cols << " inputs";
      }
    }
  }
}

TEST_P(CodedWeight, GivesTheBitsOfPlainLoopsInAnyBatchAndOnAnyThreads) {
  const Backend& scalar = cpu_backend(CpuIsa::scalar);
  const int64_t cols = 2560;  // takes several stretches
  const RandomCodes codes(format_, 75, cols, random_);
  const Packed packed(*backend_, codes);
  const std::vector<float> in = random_floats(25 * cols, random_);
  ThreadPool alone(1);
  const std::vector<float> expected = linear(scalar, in, packed.weight, alone);
  for (const int64_t count : {1, 2, 3, 5, 6, 7, 8, 9, 13, 25}) {
    const std::vector<float> some(in.end() - count * cols, in.end());
    const std::vector<float> out = linear(*backend_, some, packed.weight, pool_);
    ASSERT_EQ(std::memcmp(out.data(), expected.data() + (25 - count) * 75, out.size() * 4), 0)
        << count << " rows";
  }
}

// 4.5 groups of 128, as SmolLM2 has: the last group is not full.
TEST_P(CodedWeight, MayEndWithinAGroup) {
  const int64_t cols = round_up(576, encoding(format_).whole_inputs());
  const RandomCodes codes(format_, 33, cols, random_);
  const Packed packed(*backend_, codes);
  const std::vector<float> in = random_floats(7 * cols, random_);
  EXPECT_EQ(linear(*backend_, in, packed.weight, pool_),
            linear(cpu_backend(CpuIsa::scalar), in, packed.weight, pool_));
}

// As GPTQ stores weights whose inputs were sorted by activation.
TEST_P(CodedWeight, TakesItsInputsInAnotherOrder) {
  const int64_t cols = 1280;  // more than are put in order at once
  const RandomCodes codes(format_, 40, cols, random_);
  Packed packed(*backend_, codes);
  const std::vector<float> in = random_floats(9 * cols, random_);
  std::vector<int32_t> order(static_cast<size_t>(cols));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random_);
  std::vector<float> ordered(in.size());
  for (size_t i = 0; i < in.size(); ++i) {
    const size_t col = i % order.size();
    ordered[i] = in[i - col + static_cast<size_t>(order[col])];
  }
  const std::vector<float> expected = linear(*backend_, ordered, packed.weight, pool_);
  packed.weight.input_order = order.data();
  EXPECT_EQ(linear(*backend_, in, packed.weight, pool_), expected);
}

// The largest codes and activations: sums of products must not saturate.
TEST_P(CodedWeight, AddsTheLargestProductsExactly) {
  RandomCodes codes(format_, 33, 256, random_);
  const auto largest = static_cast<uint8_t>((1 << encoding(format_).bits) - 1);
  std::fill(codes.codes.begin(), codes.codes.end(), largest);
  const Packed packed(*backend_, codes);
  for (const float sign : {1.0f, -1.0f}) {
    const std::vector<float> in(9 * 256, sign * 127);
    const std::vector<float> out = linear(*backend_, in, packed.weight, pool_);
    const std::vector<float> expected =
        linear(cpu_backend(CpuIsa::scalar), in, packed.weight, pool_);
    ASSERT_EQ(out, expected);
    for (int64_t row = 0; row < 33; ++row) {
      double sum = 0;
      double magnitude = 0;
      for (int64_t col = 0; col < 256; ++col) {
        sum += sign * 127 * codes.weight(row, col);
        magnitude += 127 * 2 * std::fabs(codes.weight(row, col));
      }
      ASSERT_NEAR(out[static_cast<size_t>(row)], sum, 1e-5 * magnitude + 1e-6);
    }
  }
}

TEST_P(CodedWeight, IsPackedInPiecesAsAtOnce) {
  const RandomCodes codes(format_, 200, 256, random_);
  const Packed whole(*backend_, codes);
  Packed pieces(*backend_, format_, 200, 256);
  backend_->pack_codes(codes.view(128, 72), 128, pieces.weight);
  backend_->pack_codes(codes.view(0, 64), 0, pieces.weight);
  backend_->pack_codes(codes.view(64, 64), 64, pieces.weight);
  EXPECT_EQ(whole.bytes, pieces.bytes);
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const CpuIsa isa : {CpuIsa::scalar, CpuIsa::avx2, CpuIsa::avx512}) {
    for (const WeightFormat format : kCodedFormats) {
      cases.push_back({isa, format});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cpu, CodedWeight, testing::ValuesIn(all_cases()), [](const auto& one) {
  return std::string(name(one.param.isa)) + "_" + std::string(name(one.param.format));
});

TEST(CodedWeights, TakeTheBytesOfTheirCodesAndScales) {
  const Backend& backend = cpu_backend(CpuIsa::scalar);
  const auto bits = [&](WeightFormat format) {
    return 8.0 * static_cast<double>(backend.packed_weight_bytes(format, 128, 256)) / (128 * 256);
  };
  EXPECT_EQ(bits(WeightFormat::int8), 8.5);
  EXPECT_EQ(bits(WeightFormat::int4_symmetric), 4.5);
  EXPECT_EQ(bits(WeightFormat::int4), 5);
  EXPECT_EQ(bits(WeightFormat::int5_symmetric), 5.5);
  EXPECT_EQ(bits(WeightFormat::int5), 6);
  EXPECT_EQ(bits(WeightFormat::int4_super), 4.625);
  EXPECT_EQ(bits(WeightFormat::int5_super), 5.625);
  EXPECT_EQ(bits(WeightFormat::int6_super), 6.5625);
}

TEST(CodedWeights, TakeTheBytesOfTheirGroupsCodesAndScales) {
  const Backend& backend = cpu_backend(CpuIsa::scalar);
  const auto bits = [&](WeightFormat format) {
    return 8.0 * static_cast<double>(backend.packed_weight_bytes(format, 128, 4096)) / (128 * 4096);
  };
  constexpr double kRowScale = 32.0 / 4096;
  EXPECT_EQ(bits(WeightFormat::int4_group32), 4.5 + kRowScale);
  EXPECT_EQ(bits(WeightFormat::int4_group128), 4.125 + kRowScale);
  EXPECT_EQ(bits(WeightFormat::int4_zero128), 4.1875 + kRowScale);
  EXPECT_EQ(bits(WeightFormat::int8_group64), 8.25 + kRowScale);
  EXPECT_EQ(bits(WeightFormat::int8_row), 8 + 16.0 / 4096 + kRowScale);
  EXPECT_EQ(bits(WeightFormat::fp8_group128), 8.25);
}

// E4M3 codes of a checkpoint. The sums of a group are f32, so their order matters.
TEST(Fp8Weight, IsMultipliedAsItsCodesAndScalesSay) {
  std::mt19937 random(kSeed);
  constexpr int64_t kRows = 75;
  for (const int64_t cols : {128, 1344}) {
    const int64_t groups = div_ceil(cols, 128);
    std::vector<uint8_t> codes(static_cast<size_t>(kRows * cols));
    std::generate(codes.begin(), codes.end(),
                  [&] { return static_cast<uint8_t>((random() & 0x80) | random() % 0x7f); });
    std::vector<float> scales(static_cast<size_t>(kRows * groups));
    std::generate(scales.begin(), scales.end(),
                  [&] { return 1e-3f + 1e-6f * static_cast<float>(random() % 1000); });
    const std::vector<float> in = random_floats(13 * cols, random);
    for (const WeightFormat format : {WeightFormat::fp8, WeightFormat::fp8_group128}) {
      const int64_t group = format == WeightFormat::fp8 ? cols : 128;
      std::vector<float> plain;  // of plain loops
      for (const CpuIsa isa : {CpuIsa::scalar, CpuIsa::avx2, CpuIsa::avx512}) {
        if (!cpu_supports(isa)) continue;
        SCOPED_TRACE(testing::Message() << name(isa) << " " << name(format) << " " << cols);
        const Backend& backend = cpu_backend(isa);
        Packed packed(backend, format, kRows, cols);
        WeightCodes stored;
        stored.format = format;
        stored.codes = {codes.data(), kRows, cols, cols};
        stored.row_scales = {scales.data(), kRows, div_ceil(cols, group), groups};
        backend.pack_codes(stored, 0, packed.weight);
        ThreadPool pool(2);
        std::vector<float> alone;
        for (const int64_t tokens : {13, 1}) {
          std::vector<float> out(static_cast<size_t>(tokens * kRows));
          std::vector<std::byte> scratch(
              static_cast<size_t>(backend.linear_scratch_bytes(tokens, cols)));
          backend.linear({.in = {in.data(), tokens, cols, cols},
                          .weight = &packed.weight,
                          .bias = {},
                          .accumulate = false,
                          .out = {out.data(), tokens, kRows, kRows},
                          .scratch = scratch},
                         pool.stream());
          if (tokens == 1) {
            EXPECT_TRUE(std::equal(out.begin(), out.end(), alone.begin()));
          }
          alone = out;
          if (plain.empty()) plain = out;
          for (int64_t token = 0; token < tokens; ++token) {
            for (int64_t row = 0; row < kRows; ++row) {
              double exact = 0;
              double bound = 0;
              double magnitude = 0;
              for (int64_t col = 0; col < cols; ++col) {
                const e4m3 code{codes[static_cast<size_t>(row * cols + col)]};
                const double weight =
                    to_f32(code) * scales[static_cast<size_t>(row * groups + col / group)];
                const double x = in[static_cast<size_t>(token * cols + col)];
                exact += x * weight;
                magnitude += std::fabs(x * weight);
                // An activation is rounded to 4 significant bits, a small one to 2^-10 of largest
                // / 448, and no activation here is above 6.
                bound += std::fabs(weight) * (std::fabs(x) * 0x1.01p-4 + 6.0 / 448 * 0x1p-10);
              }
              const auto at = static_cast<size_t>(token * kRows + row);
              ASSERT_NEAR(out[at], exact, bound);
              ASSERT_NEAR(out[at], plain[at], 1e-5 * magnitude);
            }
          }
        }
      }
    }
  }
}

TEST(CodedWeightsDeathTest, AreConvertedOnlyToTheFormatsThatHaveAConversion) {
  const Backend& backend = cpu_backend(CpuIsa::scalar);
  const std::vector<float> zeros(64 * 256);
  const Packed packed(backend, WeightFormat::int6_super, 64, 256);
  EXPECT_DEATH(backend.pack_weight({zeros.data(), 64, 256, 256}, 0, packed.weight), "converted");
}

}  // namespace
}  // namespace tessera
