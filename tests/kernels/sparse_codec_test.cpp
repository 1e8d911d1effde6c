#include "kernels/cpu/pages/sparse_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "kernels/cpu/pages/page_codec.h"
#include "kernels/cpu/pages/page_ops.h"
#include "tests/kernels/isas.h"
#include "tests/kernels/kv_rows.h"

namespace tessera {
namespace {

// A side of a format that keeps `kept` channels.
SparseSide side_of(int32_t head_dim, int32_t kept, int32_t bits) {
  return {head_dim, kept, bits, div_ceil(int64_t{kept} * bits, 8), round_up(head_dim, 64) / 8};
}

// Writes `channels` as token 3 of a tile and reads them again. Checks that other tokens keep their
// bytes.
std::vector<float> stored(const SparseSide& side, const std::vector<float>& channels) {
  constexpr std::byte kBefore{0xa5};
  const auto tile_bytes = KvPageLayout::kKeyTile * (side.kept_bytes + side.bitmap_bytes);
  std::vector<std::byte> bytes(static_cast<size_t>(tile_bytes), kBefore);
  f16 scales[KvPageLayout::kKeyTile] = {};
  encode_sparse(side, channels.data(), nullptr, 3, bytes.data(), scales);
  int64_t others = 0;
  for (int64_t i = 0; i < tile_bytes; ++i) {
    const bool own = (i >= side.kept_offset(3) && i < side.kept_offset(4)) ||
                     (i >= side.bitmap_offset(3) && i < side.bitmap_offset(4));
    others += !own && bytes[static_cast<size_t>(i)] == kBefore ? 1 : 0;
  }
  EXPECT_EQ(others, tile_bytes - side.kept_bytes - side.bitmap_bytes) << "another token's bytes";
  std::vector<float> read(channels.size());
  decode_sparse(side, bytes.data(), scales, 3, read.data());
  return read;
}

int64_t count_of(const std::vector<float>& channels, float x) {
  return std::count(channels.begin(), channels.end(), x);
}

TEST(KvFormatName, IsReadBackAsTheSameFormat) {
  int formats = 0;
  for (const int key_bits : {32, 16, 8, 4, 2}) {
    for (const int value_bits : {32, 16, 8, 4, 2, 1}) {
      for (const int key_keep : {1000, 999, 500, 375, 300, 1}) {
        for (const int value_keep : {1000, 700, 300, 125}) {
          const KvFormat format{static_cast<uint8_t>(key_bits), static_cast<uint8_t>(value_bits),
                                static_cast<uint16_t>(key_keep), static_cast<uint16_t>(value_keep)};
          if (is_supported(format)) {
            EXPECT_EQ(kv_format_named(name_of(format)), format) << name_of(format);
            ++formats;
          } else {
            EXPECT_EQ(name_of(format), "?");
          }
        }
      }
    }
  }
  EXPECT_EQ(formats, 2 + 11 + 4 * 23);
}

TEST(KvFormatName, EndsWithAnRIfCodesAreRotated) {
  EXPECT_EQ(name_of(kKvK4V2R), "k4v2r");
  EXPECT_EQ(kv_format_named("k4v2r"), kKvK4V2R);
  EXPECT_EQ(kv_format_named("k8v4r"), (KvFormat{8, 4, 1000, 1000, true}));
  EXPECT_EQ(kv_format_named("k3v3r"), kKvK3V3R);
  EXPECT_EQ(kv_format_named("k6v4r"), kKvK6V4R);
  EXPECT_EQ(kv_format_named("fp8"), kKvFp8);
  EXPECT_EQ(name_of(kKvFp8), "fp8");
  for (const std::string_view none :
       {"f16r", "f32r", "s50r", "s50-k4v4r", "k4v2rr", "k4rv2", "r", "fp8r", "fp16", "s50-fp8",
        "k3v3", "k8v3", "k3v8", "k6v4", "k8v6r", "k6v6r", "s50-k3v3"}) {
    EXPECT_EQ(kv_format_named(none), std::nullopt) << none;
  }
}

TEST(KvFormatName, SaysWhatIsPrunedOfKeysAndValues) {
  EXPECT_EQ(name_of(kKvS70), "s70");
  EXPECT_EQ(name_of(kKvS50K4V4), "s50-k4v4");
  EXPECT_EQ(name_of({16, 16, 500, 1000}), "s50v0");
  EXPECT_EQ(name_of({16, 4, 1000, 375}), "s0v62.5-k16v4");
  for (const std::string_view none :
       {"",      "s",          "s0",     "s100",    "s50v",     "s50v50",  "s050",
        "s50.0", "s50-k16v16", "s50-k4", "s50k4v4", "s70-k2v2", "s70-",    "s-70",
        "s70 ",  "k",          "k8v",    "f8",      "kf16",     "f16v16",  "s99.95",
        "k3v4",  "s70-k260v4", "s5000",  "k8v2",    "s50-k8v8", "s70-k4v8"}) {
    EXPECT_EQ(kv_format_named(none), std::nullopt) << none;
  }
}

TEST(KvFormat, KeepsTheNearestCountAndAtLeastOneChannel) {
  EXPECT_EQ(kKvS70.kept_keys(128), 38);
  EXPECT_EQ(kKvS50.kept_values(128), 64);
  EXPECT_EQ(kKvS70.kept_keys(80), 24);
  EXPECT_EQ((KvFormat{16, 16, 1, 1}).kept_keys(128), 1);
  EXPECT_EQ((KvFormat{16, 16, 999, 500}).kept_keys(8), 8);
  EXPECT_EQ((KvFormat{16, 16, 1000, 500}).kept_keys(80), 80);
}

TEST(SparseCodec, KeepsTheLargestAndReadsTheOthersAsZero) {
  const std::vector<float> channels{1, -8, 0.5f, 7, -2, 6, 3, -4};
  EXPECT_EQ(stored(side_of(8, 3, 16), channels), (std::vector<float>{0, -8, 0, 7, 0, 6, 0, 0}));
  EXPECT_EQ(stored(side_of(8, 1, 16), channels), (std::vector<float>{0, -8, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(stored(side_of(8, 8, 16), channels), channels);
}

TEST(SparseCodec, KeepsTheLowerIndexOfEqualMagnitudes) {
  EXPECT_EQ(stored(side_of(8, 3, 16), {2, -2, 2, -2, 2, -2, 2, -2}),
            (std::vector<float>{2, -2, 2, 0, 0, 0, 0, 0}));
  EXPECT_EQ(stored(side_of(8, 3, 16), {2, -2, 2, -2, 9, -2, 2, -2}),
            (std::vector<float>{2, -2, 0, 0, 9, 0, 0, 0}));
}

TEST(SparseCodec, HoldsZeroAndConstantVectors) {
  for (const int32_t head_dim : {8, 24, 80, 128}) {
    for (const int32_t bits : {16, 4}) {
      for (const int32_t kept : {1, 5, head_dim}) {
        const SparseSide side = side_of(head_dim, kept, bits);
        const auto n = static_cast<size_t>(head_dim);
        EXPECT_EQ(stored(side, std::vector<float>(n, 0.0f)), std::vector<float>(n, 0.0f));
        const std::vector<float> constant = stored(side, std::vector<float>(n, -7.0f));
        const float stored_constant = constant[0];
        EXPECT_NEAR(stored_constant, -7.0f, 7 * 0x1p-11f);  // a scale is f16
        EXPECT_EQ(count_of(constant, stored_constant), kept);
        EXPECT_EQ(count_of(constant, 0), head_dim - kept);
        EXPECT_EQ(constant[static_cast<size_t>(kept - 1)], stored_constant)
            << "lower indexes first";
      }
    }
  }
}

TEST(SparseCodec, IsWhatAnIndependentPrunerSays) {
  for (uint32_t seed = 1; seed <= 400; ++seed) {
    std::mt19937 random(seed);
    const auto head_dim = static_cast<int32_t>(8 * (1 + random() % 32));
    const auto kept = static_cast<int32_t>(1 + random() % static_cast<uint32_t>(head_dim));
    const int32_t bits = random() % 2 == 0 ? 4 : 16;
    SCOPED_TRACE(testing::Message() << "seed " << seed << " head_dim " << head_dim << " kept "
                                    << kept << " bits " << bits);
    std::vector<float> channels = random_floats(random, head_dim, seed % 2 == 0 ? 3.0f : 1e-6f);
    for (float& x : channels) {
      x = seed % 3 == 0 ? std::round(x) : to_f32(to_stored_f16(x));  // many ties, or few
    }
    EXPECT_EQ(stored(side_of(head_dim, kept, bits), channels),
              prune(channels, kept, bits).channels);
  }
}

// Includes ties, zeros of both signs, the largest f16 and subnormal numbers.
TEST(SparseCodec, WritesTheSameBytesWithEveryInstructionSet) {
  if (!cpu_supports(CpuIsa::avx512)) {
    GTEST_SKIP() << "no AVX-512";
  }
  for (uint32_t seed = 1; seed <= 2000; ++seed) {
    std::mt19937 random(seed);
    const auto head_dim = static_cast<int32_t>(8 * (1 + random() % 32));
    const auto kept = static_cast<int32_t>(1 + random() % static_cast<uint32_t>(head_dim));
    const SparseSide side = side_of(head_dim, kept, random() % 2 == 0 ? 4 : 16);
    SCOPED_TRACE(testing::Message() << "seed " << seed << " head_dim " << head_dim << " kept "
                                    << kept << " bits " << side.bits);
    constexpr float kSpreads[] = {0.0f, 1e-7f, 1e-5f, 1.0f, 3.0f, 60000.0f};
    std::vector<float> channels = random_floats(random, head_dim, kSpreads[random() % 6]);
    std::vector<f16> halves;
    for (float& x : channels) {
      halves.push_back(to_stored_f16(seed % 3 == 0 ? std::round(x) : x));
      x = to_f32(halves.back());
    }
    const auto bytes = static_cast<size_t>(16 * (side.kept_bytes + side.bitmap_bytes));
    std::vector<std::byte> expected(bytes, std::byte{0xa5});
    std::vector<std::byte> written = expected;
    f16 expected_scales[16] = {};
    f16 scales[16] = {};
    encode_sparse(side, channels.data(), nullptr, 5, expected.data(), expected_scales);
    avx512::kPageOps.encode_sparse(side, halves.data(), 5, written.data(), scales);
    EXPECT_EQ(written, expected);
    EXPECT_EQ(to_f32(scales[5]), to_f32(expected_scales[5]));
  }
}

TEST(SparseCodec, CodesErrByHalfAStepAndWhatF16Adds) {
  constexpr int32_t kBits = 4;
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const std::vector<float> channels = random_floats(random, 64, 5.0f);
    const std::vector<float> read = stored(side_of(64, 64, kBits), channels);
    const auto last = static_cast<float>(largest_sparse_code(kBits));
    float largest = 0;
    for (const float x : channels) {
      largest = std::max(largest, std::abs(x));
    }
    for (size_t c = 0; c < channels.size(); ++c) {
      EXPECT_LE(std::abs(read[c] - channels[c]), largest * (0.5f / last + 0x1p-11f) * 1.01f);
    }
  }
}

}  // namespace
}  // namespace tessera
