#include "bench/measure.h"

#include <gtest/gtest.h>

namespace tessera::bench {
namespace {

TEST(Spread, ReturnsASingleSampleAsItself) {
  const Spread spread = spread_of({7});
  EXPECT_EQ(spread.min, 7);
  EXPECT_EQ(spread.lower_quartile, 7);
  EXPECT_EQ(spread.median, 7);
  EXPECT_EQ(spread.upper_quartile, 7);
}

TEST(Spread, DoesNotDependOnTheOrderOfSamples) {
  const Spread spread = spread_of({50, 10, 40, 20, 30});
  EXPECT_EQ(spread.min, 10);
  EXPECT_EQ(spread.lower_quartile, 20);
  EXPECT_EQ(spread.median, 30);
  EXPECT_EQ(spread.upper_quartile, 40);
}

TEST(Spread, InterpolatesBetweenSamples) {
  const Spread spread = spread_of({1, 2, 3, 4});
  EXPECT_DOUBLE_EQ(spread.lower_quartile, 1.75);
  EXPECT_DOUBLE_EQ(spread.median, 2.5);
  EXPECT_DOUBLE_EQ(spread.upper_quartile, 3.25);
}

TEST(Floor, IsWhatTakesLonger) {
  const Bandwidth bandwidth{.read = 10, .copy = 5};
  const Floor reading = floor_of({.read_bytes = 1000, .flops = 99}, bandwidth, 1);
  EXPECT_DOUBLE_EQ(reading.nanoseconds, 100);
  EXPECT_TRUE(reading.by_bytes);
  const Floor computing = floor_of({.read_bytes = 1000, .flops = 101}, bandwidth, 1);
  EXPECT_DOUBLE_EQ(computing.nanoseconds, 101);
  EXPECT_FALSE(computing.by_bytes);
}

TEST(Floor, PairsWhatIsWrittenWithReading) {
  const Bandwidth bandwidth{.read = 10, .copy = 5};
  // 300 bytes are read and written at the copy rate; the other 700 are read at the read rate
  EXPECT_DOUBLE_EQ(floor_of({.read_bytes = 1000, .written_bytes = 300}, bandwidth, 1).nanoseconds,
                   600 / 5.0 + 700 / 10.0);
  // more bytes written than read: all of them count at the copy rate
  EXPECT_DOUBLE_EQ(floor_of({.read_bytes = 100, .written_bytes = 300}, bandwidth, 1).nanoseconds,
                   400 / 5.0);
}

// Records the order in which the variants are called. Each must get its samples in turns.
TEST(Measure, TakesTurnsUntilEachVariantHasItsSamples) {
  const std::unique_ptr<Device> device = Device::make("cpu", 1);
  Peaks peaks(*device);
  std::vector<int> order;
  std::vector<Variant> variants(2);
  for (int i = 0; i < 2; ++i) {
    variants[static_cast<size_t>(i)] = {.format = "f32",
                                        .isa = "scalar",
                                        .peer = {},
                                        .cost = {.read_bytes = 64, .written_bytes = 64, .flops = 1},
                                        .cycled_bytes = 1 << 16,
                                        .call = [&order, i] {
                                          if (order.empty() || order.back() != i) {
                                            order.push_back(i);
                                          }
                                        }};
  }
  const std::vector<Measured> measured = measure(*device, peaks, variants, 1e-4);
  ASSERT_EQ(measured.size(), 2u);
  EXPECT_GE(order.size(), 2u * 3);
  for (const Measured& one : measured) {
    EXPECT_GE(one.samples, 3);
    EXPECT_GT(one.call.median, 0);
    EXPECT_GT(one.beside.read, 0);
    EXPECT_GT(one.beside.copy, 0);
    EXPECT_GT(one.peak, 0);
  }
}

TEST(Device, IsFoundByItsName) {
  EXPECT_NE(Device::make("cpu", 1), nullptr);
  EXPECT_EQ(Device::make("abacus", 1), nullptr);
}

}  // namespace
}  // namespace tessera::bench
