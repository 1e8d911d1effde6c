#include "kernels/matrix/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

namespace tessera {
namespace {

bool is_nan(f16 value) {
  return (value.bits & 0x7c00) == 0x7c00 && (value.bits & 0x3ff) != 0;
}

TEST(F16, SurvivesTheWayThroughF32) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const f16 value{static_cast<uint16_t>(bits)};
    if (is_nan(value)) {
      ASSERT_TRUE(std::isnan(to_f32(value)));
      ASSERT_TRUE(is_nan(to_f16(to_f32(value))));
    } else {
      ASSERT_EQ(to_f16(to_f32(value)).bits, value.bits);
    }
  }
}

TEST(F16, IsWhatTheStandardSays) {
  EXPECT_EQ(to_f32(f16{0x3c00}), 1.0f);
  EXPECT_EQ(to_f32(f16{0xc000}), -2.0f);
  EXPECT_EQ(to_f32(f16{0x7bff}), 65504.0f);
  EXPECT_EQ(to_f32(f16{0x0001}), 0x1p-24f);
  EXPECT_EQ(to_f32(f16{0xfc00}), -std::numeric_limits<float>::infinity());
}

// Every f16 and its upper neighbour: numbers below the middle round down, numbers above round up.
// The middle rounds to the neighbour with an even last bit.
TEST(F16, RoundsToNearestEven) {
  for (uint16_t bits = 0; bits < 0x7bff; ++bits) {
    const float low = to_f32(f16{bits});
    const float high = to_f32(f16{static_cast<uint16_t>(bits + 1)});
    const float middle = low + (high - low) / 2;
    const int even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(to_f16(middle).bits, even);
    ASSERT_EQ(to_f16(-middle).bits, even | 0x8000);
    ASSERT_EQ(to_f16(std::nextafter(middle, 0.0f)).bits, bits);
    ASSERT_EQ(to_f16(std::nextafter(middle, 1e6f)).bits, bits + 1);
  }
}

TEST(F16, BecomesInfiniteFromHalfAStepAboveItsLargest) {
  EXPECT_EQ(to_f16(65519.996f).bits, 0x7bff);
  EXPECT_EQ(to_f16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(to_f16(-1e30f).bits, 0xfc00);
}

TEST(Bf16, SurvivesTheWayThroughF32) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const bf16 value{static_cast<uint16_t>(bits)};
    const float wide = to_f32(value);
    if (std::isnan(wide)) {
      ASSERT_TRUE(std::isnan(to_f32(to_bf16(wide))));
    } else {
      ASSERT_EQ(to_bf16(wide).bits, value.bits);
    }
  }
}

TEST(Bf16, RoundsToNearestEven) {
  std::mt19937 random(3);
  for (int i = 0; i < 100'000; ++i) {
    const auto upper = static_cast<uint32_t>(random() % 0x7f7f);
    const auto at = [upper](uint32_t lower) {
      return static_cast<uint32_t>(to_bf16(std::bit_cast<float>((upper << 16) | lower)).bits);
    };
    ASSERT_EQ(at(0x7fff), upper);
    ASSERT_EQ(at(0x8000), upper + upper % 2);
    ASSERT_EQ(at(0x8001), upper + 1);
  }
}

TEST(Bf16, NeverRoundsANaNToInfinity) {
  const float nan = std::bit_cast<float>(0x7f800001u);
  EXPECT_TRUE(std::isnan(to_f32(to_bf16(nan))));
  EXPECT_TRUE(std::isnan(to_f32(to_bf16(-nan))));
}

}  // namespace
}  // namespace tessera
