#include "kernels/matrix/e4m3.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "kernels/matrix/half.h"

namespace tessera {
namespace {

float value_of(int code) {
  return to_f32(e4m3{static_cast<uint8_t>(code)});
}

TEST(E4m3, HasTheValuesOfItsDefinition) {
  EXPECT_EQ(value_of(0x00), 0.0f);
  EXPECT_EQ(value_of(0x01), 0x1p-9f);
  EXPECT_EQ(value_of(0x07), 7 * 0x1p-9f);
  EXPECT_EQ(value_of(0x08), 0x1p-6f);
  EXPECT_EQ(value_of(0x38), 1.0f);
  EXPECT_EQ(value_of(0x7e), 448.0f);
  EXPECT_TRUE(std::isnan(value_of(0x7f)));
  EXPECT_TRUE(std::isnan(value_of(0xff)));
  EXPECT_TRUE(std::signbit(value_of(0x80)));
  for (int code = 0; code < 0x7e; ++code) {
    EXPECT_LT(value_of(code), value_of(code + 1));
    EXPECT_EQ(value_of(code | 0x80), -value_of(code));
  }
}

TEST(E4m3, IsABf16Exactly) {
  for (int code = 0; code < 0x7f; ++code) {
    EXPECT_EQ(to_f32(to_bf16(value_of(code))), value_of(code));
  }
}

TEST(E4m3, ComesBackAsItWas) {
  for (int code = 0; code < 256; ++code) {
    EXPECT_EQ(to_e4m3(value_of(code)).bits, code);
  }
}

TEST(E4m3, RoundsToTheNearestAndHalvesToEven) {
  for (int code = 0; code < 0x7e; ++code) {
    const float low = value_of(code);
    const float high = value_of(code + 1);
    const float middle = (low + high) / 2;
    EXPECT_EQ(to_e4m3(middle).bits, code % 2 == 0 ? code : code + 1);
    EXPECT_EQ(to_e4m3(std::nextafter(middle, 0.0f)).bits, code);
    EXPECT_EQ(to_e4m3(std::nextafter(middle, 500.0f)).bits, code + 1);
    EXPECT_EQ(to_e4m3(-middle).bits, 0x80 | (code % 2 == 0 ? code : code + 1));
  }
  EXPECT_EQ(to_e4m3(500.0f).bits, 0x7e);
  EXPECT_EQ(to_e4m3(-std::numeric_limits<float>::infinity()).bits, 0xfe);
  EXPECT_EQ(to_e4m3(std::numeric_limits<float>::quiet_NaN()).bits, 0x7f);
  EXPECT_EQ(to_e4m3(1e-30f).bits, 0x00);
}

}  // namespace
}  // namespace tessera
