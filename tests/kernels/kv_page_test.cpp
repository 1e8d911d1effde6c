#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <random>
#include <utility>
#include <vector>

#include "kernels/kv/kv_page_size.h"
#include "kernels/kv/rotation.h"
#include "tests/kernels/isas.h"
#include "tests/kernels/kv_rows.h"
#include "tests/kernels/kv_sequences.h"

namespace tessera {
namespace {

constexpr int32_t kTile = KvPageLayout::kKeyTile;

static_assert(KvPageLayout::make(kKvK8V8, 128, 64).tile_bytes() == 16 * 264);
static_assert(KvPageLayout::make(kKvK8V4, 128, 64).tile_bytes() == 16 * 200);
static_assert(KvPageLayout::make(kKvK4V4, 128, 64).tile_bytes() == 16 * 136);
static_assert(KvPageLayout::make(kKvK4V2, 128, 64).tile_bytes() == 16 * 104);
static_assert(KvPageLayout::make(kKvK4V1, 128, 64).tile_bytes() == 16 * 88);
static_assert(KvPageLayout::make(kKvK4V2R, 64, 64).tile_bytes() ==
              KvPageLayout::make(kKvK4V2, 64, 64).tile_bytes());
// A codebook has no zeros: 4 bytes a token less for keys and values of 3 bits.
static_assert(KvPageLayout::make(kKvK3V3R, 128, 64).tile_bytes() == 16 * 100);
static_assert(KvPageLayout::make(kKvK4V3R, 128, 64).tile_bytes() == 16 * 118);
static_assert(KvPageLayout::make(kKvK3V3R, 64, 64).tile_bytes() == 16 * 52);
// Sub-lines 5, 6 and 7 of a unit of three lines.
static_assert(KvPageLayout::make(kKvK3V3R, 64, 64).key_place(0, 20).byte == 128);
static_assert(KvPageLayout::make(kKvK3V3R, 64, 64).key_place(0, 20).shift == 3);
static_assert(KvPageLayout::make(kKvK3V3R, 64, 64).key_place(1, 24).byte == 4);
static_assert(KvPageLayout::make(kKvK3V3R, 64, 64).key_place(1, 24).shift == 6);
static_assert(KvPageLayout::make(kKvK3V3R, 64, 64).key_place(1, 24).others[0].byte == 128 + 4);
static_assert(KvPageLayout::make(kKvK3V3R, 64, 64).key_place(1, 28).others[0].shift == 7);
static_assert(KvPageLayout::make(kKvK6V4R, 128, 64).tile_bytes() == 16 * 168);
static_assert(KvPageLayout::make(kKvK6V4R, 64, 64).tile_bytes() == 16 * 88);
// Sub-lines 2 and 3 of the second unit of three lines.
static_assert(KvPageLayout::make(kKvK6V4R, 64, 64).key_place(1, 24).byte == 5 * 64 + 4);
static_assert(KvPageLayout::make(kKvK6V4R, 64, 64).key_place(1, 24).bits == 6);
static_assert(KvPageLayout::make(kKvK6V4R, 64, 64).key_place(1, 28).byte == 3 * 64 + 4);
static_assert(KvPageLayout::make(kKvK6V4R, 64, 64).key_place(1, 28).others[1].byte == 5 * 64 + 4);
static_assert(KvPageLayout::make(kKvK8V4, 128, 16).key_place(3, 6).byte == 64 + 4 * 3 + 2);
static_assert(KvPageLayout::make(kKvK4V2, 128, 16).key_place(3, 6).byte == 4 * 3 + 2);
static_assert(KvPageLayout::make(kKvK4V2, 128, 16).key_place(3, 6).shift == 4);
static_assert(KvPageLayout::make(kKvK4V2, 128, 16).value_place(9, 17).byte == 64 + 4 + 1);
static_assert(KvPageLayout::make(kKvK4V2, 128, 16).value_place(9, 17).shift == 4);

TEST(KvPageLayout, RoundsCapacityToTilesAndBytesToTheMultiple) {
  const KvPageLayout layout = KvPageLayout::make(kKvF16, 8, 17);
  EXPECT_EQ(layout.capacity, 32);
  EXPECT_EQ(layout.page_bytes, 32 * 8 * 2 * 2);
  for (const KvFormat format : named_formats()) {
    for (const int32_t head_dim : {8, 64, 80, 128}) {
      const KvPageLayout made = KvPageLayout::make(format, head_dim, 64);
      EXPECT_EQ(made.page_bytes % KvPageLayout::kByteMultiple, 0);
      EXPECT_GE(made.page_bytes, made.used_bytes());
      EXPECT_EQ(KvPageLayout::fit(format, head_dim, made.page_bytes).capacity, made.capacity);
    }
  }
  EXPECT_EQ(KvPageLayout::fit(kKvF16, 128, 6656).capacity, 0);  // 13 tokens do not fill a tile
}

TEST(Rotation, IsTheWalshHadamardTransformOfEachBlock) {
  const std::pair<int32_t, int32_t> blocks[] = {{64, 64}, {80, 16}, {96, 32}, {128, 128}, {72, 8}};
  for (const auto& [head_dim, block] : blocks) {
    ASSERT_EQ(rotation_block(head_dim), block);
    std::mt19937 random(static_cast<uint32_t>(head_dim));
    const std::vector<float> before = random_floats(random, head_dim);
    std::vector<float> after = before;
    rotate(after.data(), head_dim);
    for (int32_t c = 0; c < head_dim; ++c) {
      double expected = 0;
      for (int32_t i = 0; i < block; ++i) {
        const double sign = std::popcount(static_cast<uint32_t>(c % block & i)) % 2 == 0 ? 1 : -1;
        expected += sign * double{before[static_cast<size_t>(c / block * block + i)]};
      }
      ASSERT_NEAR(double{after[static_cast<size_t>(c)]}, expected / std::sqrt(double(block)), 1e-5)
          << "head_dim " << head_dim << " channel " << c;
    }
    rotate(after.data(), head_dim);
    for (size_t c = 0; c < after.size(); ++c) {
      ASSERT_NEAR(after[c], before[c], 1e-5f) << "it is its own inverse";
    }
  }
}

// Each number is the mean of the normal distribution between its limits: Max's condition.
TEST(Codebook, HasTheNumbersOfLeastErrorForANormalDistribution) {
  const double scale = 2.152 / kCodebookNumbers[kCodebookSize - 1];  // Max, table 1
  const auto density = [](double x) {
    return std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
  };
  const auto below = [](double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; };
  for (int32_t i = 0; i < kCodebookSize; ++i) {
    const double low = i == 0 ? -40 : scale * double{codebook_limit(i)};
    const double high = i + 1 == kCodebookSize ? 40 : scale * double{codebook_limit(i + 1)};
    const double mean = (density(low) - density(high)) / (below(high) - below(low));
    EXPECT_NEAR(mean, scale * kCodebookNumbers[i], 0.01) << "number " << i;
    EXPECT_EQ(multiplier_of(static_cast<uint32_t>(i), 3), kCodebookNumbers[i] + 128);
  }
}

// Max's table has an error of 0.03454 for 8 numbers. Scales of single tokens are fitted, so less is
// left.
TEST(Codebook, LeavesTheErrorOfMaxInNormalNumbers) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0, 3);
  double error = 0;
  for (int i = 0; i < 500; ++i) {
    std::vector<float> numbers(64);
    std::generate(numbers.begin(), numbers.end(), [&] { return normal(random); });
    const CodedToken token = encode_with_codebook(numbers);
    for (size_t c = 0; c < numbers.size(); ++c) {
      error += std::pow(double{numbers[c]} - token.decoded(c), 2);
    }
  }
  error /= 500 * 64 * 9;
  EXPECT_LT(error, 0.03454);
  EXPECT_GT(error, 0.029);
}

// Bits of a page that are in use. No bit is taken twice, and none outside the page.
class TakenBits {
 public:
  explicit TakenBits(const KvPageLayout& layout)
      : taken_(static_cast<size_t>(layout.page_bytes * 8)) {}

  void take(int64_t first_bit, int64_t count) {
    for (int64_t bit = first_bit; bit < first_bit + count; ++bit) {
      ASSERT_TRUE(bit >= 0 && bit < std::ssize(taken_)) << "bit " << bit;
      ASSERT_FALSE(taken_[static_cast<size_t>(bit)]) << "bit " << bit;
      taken_[static_cast<size_t>(bit)] = true;
    }
  }

 private:
  std::vector<bool> taken_;
};

void take_tokens(const KvPageLayout& layout, int32_t tile, TakenBits& bits) {
  const int64_t keys = layout.keys_offset(tile);
  const int64_t values = layout.values_offset(tile);
  for (int32_t token = 0; token < kTile; ++token) {
    bits.take((keys + layout.kept_keys_offset(token)) * 8, layout.kept_key_bytes() * 8);
    bits.take((keys + layout.key_bitmap_offset(token)) * 8, layout.key_bitmap_bytes() * 8);
    bits.take((values + layout.kept_values_offset(token)) * 8, layout.kept_value_bytes() * 8);
    bits.take((values + layout.value_bitmap_offset(token)) * 8, layout.value_bitmap_bytes() * 8);
  }
}

void take_code(int64_t offset, const KvPageLayout::CodePlace& place, int32_t code_bits,
               TakenBits& bits) {
  bits.take((offset + place.byte) * 8 + place.shift, place.bits);
  int32_t taken = place.bits;
  for (const KvPageLayout::CodePlace::Part& part : place.others) {
    bits.take((offset + part.byte) * 8 + part.shift, part.bits);
    taken += part.bits;
  }
  ASSERT_EQ(taken, code_bits);
}

void take_elements(const KvPageLayout& layout, int32_t tile, TakenBits& bits) {
  if (layout.format.is_sparse()) {
    take_tokens(layout, tile, bits);
    return;
  }
  const int32_t key_bits = layout.format.key_bits;
  const int32_t value_bits = layout.format.value_bits;
  for (int32_t token = 0; token < kTile; ++token) {
    for (int32_t channel = 0; channel < layout.head_dim; ++channel) {
      if (layout.format.is_codes()) {
        const auto key = layout.key_place(token, channel);
        const auto value = layout.value_place(token, channel);
        take_code(layout.keys_offset(tile), key, key_bits, bits);
        take_code(layout.values_offset(tile), value, value_bits, bits);
      } else {
        bits.take((layout.keys_offset(tile) + layout.key_offset(token, channel)) * 8, key_bits);
        bits.take((layout.values_offset(tile) + layout.value_offset(token, channel)) * 8,
                  value_bits);
      }
    }
  }
}

TEST(KvPageLayout, GivesEveryElementItsOwnBitsInsideThePage) {
  std::vector<KvFormat> formats = named_formats();
  formats.insert(formats.end(), {{2, 1}, {8, 1}, {2, 8}});
  for (const KvFormat format : formats) {
    for (const int32_t head_dim : {8, 24, 64, 80, 128, 256}) {
      SCOPED_TRACE(testing::Message() << name_of(format) << " head_dim " << head_dim);
      const KvPageLayout layout = KvPageLayout::make(format, head_dim, 48);
      TakenBits bits(layout);
      for (int32_t tile = 0; tile < layout.capacity / kTile; ++tile) {
        take_elements(layout, tile, bits);
        bits.take(layout.key_scales_offset(tile) * 8, layout.key_scale_tile_bytes() * 8);
        bits.take(layout.key_zeros_offset(tile) * 8, layout.key_zero_tile_bytes() * 8);
        bits.take(layout.value_scales_offset(tile) * 8, layout.value_scale_tile_bytes() * 8);
        bits.take(layout.value_zeros_offset(tile) * 8, layout.value_zero_tile_bytes() * 8);
        if (testing::Test::HasFailure()) {
          return;
        }
      }
    }
  }
}

TEST(KvPageSize, IsAGroupForAFormatThatStandsAlone) {
  for (const KvFormat format : named_formats()) {
    for (const int32_t head_dim : {64, 80, 128}) {
      const std::vector<KvFormatUse> uses{{format}};
      const int64_t page_bytes = best_page_bytes(uses, head_dim);
      const KvPageLayout layout = KvPageLayout::fit(format, head_dim, page_bytes);
      EXPECT_EQ(layout.capacity, kKvGroup);
      const double rounding = double{KvPageLayout::kByteMultiple} / static_cast<double>(page_bytes);
      EXPECT_LT(expected_waste(layout, true), 0.005 + rounding);
    }
  }
}

TEST(KvPageSize, HoldsAtMostTheTokensThatAUseAllows) {
  const auto capacity = [](std::vector<KvFormatUse> uses) {
    const int64_t page_bytes = best_page_bytes(uses, 64);
    return KvPageLayout::fit(uses.front().format, 64, page_bytes).capacity;
  };
  EXPECT_EQ(capacity({{.format = kKvK6V4R, .max_page_tokens = 32}}), 32);
  EXPECT_LE(capacity({{.format = kKvK8V4, .max_page_tokens = 32}, {.format = kKvK4V2}}), 32);
  // A tile of f32 takes a larger page.
  EXPECT_GE(capacity({{.format = kKvK4V2, .max_page_tokens = 32}, {.format = kKvF32}}), 64);
}

TEST(KvPageSize, HoldsATileOfEveryFormatAndWastesTheLeast) {
  const std::vector<KvFormatUse> uses{{kKvK8V4, false}, {kKvK4V2, false}};
  const int64_t best = best_page_bytes(uses, 128);
  const auto waste = [&](int64_t page_bytes) {
    double sum = 0;
    for (const KvFormatUse& use : uses) {
      sum += expected_waste(KvPageLayout::fit(use.format, 128, page_bytes), use.whole_groups);
    }
    return sum;
  };
  EXPECT_EQ(best % KvPageLayout::kByteMultiple, 0);
  EXPECT_LT(waste(best), 0.06);
  EXPECT_LE(waste(best), waste(6656));
  EXPECT_LE(waste(best), waste(12800));
  const std::vector<KvFormatUse> wide{{kKvF16}, {kKvK4V2, false}};
  EXPECT_GE(KvPageLayout::fit(kKvF16, 128, best_page_bytes(wide, 128)).capacity, kTile);
}

}  // namespace
}  // namespace tessera
