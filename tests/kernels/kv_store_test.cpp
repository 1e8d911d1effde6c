#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "kernels/cpu/pages/page_codec.h"
#include "kernels/kv/key_sketch.h"
#include "tests/kernels/isas.h"
#include "tests/kernels/kv_sequences.h"

namespace tessera {
namespace {

KvArenaShape shape_of(KvFormat format, int32_t head_dim, int32_t context, int32_t page_tokens) {
  KvArenaShape shape{.formats = {format},
                     .head_dim = head_dim,
                     .page_bytes = KvPageLayout::make(format, head_dim, page_tokens).page_bytes,
                     .slots = 3,
                     .layers = 2,
                     .kv_heads = 2,
                     .context = context};
  shape.pages = static_cast<int32_t>(shape.rows()) * shape.row_pages();
  return shape;
}

class KvStore : public testing::TestWithParam<CpuIsa> {
 protected:
  const Backend& backend() const { return cpu_backend(GetParam()); }
  ThreadPool pool_{2};
};

uint64_t fnv1a(const std::byte* bytes, int64_t count) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (int64_t i = 0; i < count; ++i) {
    hash = (hash ^ std::to_integer<uint64_t>(bytes[i])) * 0x100000001b3u;
  }
  return hash;
}

// Key channel c of token t is -2 + 0.5 * code, and its value channel 1 + 0.25 * code. The codes are
// chosen so that both ends of the range occur. Floats use the codes of 8 bits.
uint32_t key_code(int32_t bits, int32_t t, int32_t c) {
  const uint32_t last = (1u << bits) - 1;
  return c == 0 ? 0 : c == 1 ? last : static_cast<uint32_t>(3 * t + 5 * c) & last;
}
uint32_t value_code(int32_t bits, int32_t t, int32_t c) {
  const uint32_t last = (1u << bits) - 1;
  return c == 0 ? last : c == 1 ? 0 : static_cast<uint32_t>(5 * t + 3 * c) & last;
}

struct Golden {
  KvFormat format;
  int64_t bytes;  // of the page, without slack
  uint64_t hash;  // FNV-1a of these bytes
  struct {
    int64_t offset;
    uint8_t bytes[8];
  } places[3];  // in key tile 1, at the end of the keys, in value tile 2
};

// Contract of the page layout with every kernel and every snapshot. Computed by a separate program
// from the text of kernels/kv/kv_page.h, not by the code under test.
const Golden kGolden[] = {
    {{32, 32},
     4096,
     0x85f96e9fd32b2cc1,
     {{520, {0x00, 0x00, 0x00, 0xc0, 0x00, 0x00, 0x00, 0xc0}},
      {2040, {0x00, 0x00, 0xd9, 0x42, 0x00, 0x00, 0xdc, 0x42}},
      {3072, {0x00, 0x80, 0x81, 0x42, 0x00, 0x00, 0x80, 0x3f}}}},
    {{16, 16},
     2048,
     0x9418d07c11cf0bab,
     {{264, {0x00, 0xc0, 0x00, 0xc0, 0x00, 0xc0, 0x00, 0xc0}},
      {1016, {0x98, 0x56, 0xb0, 0x56, 0xc8, 0x56, 0xe0, 0x56}},
      {1536, {0x0c, 0x54, 0x00, 0x3c, 0x50, 0x51, 0x68, 0x51}}}},
    {{8, 8},
     2048,
     0x9aa5d95e01559a65,
     {{136, {0x00, 0xff, 0x40, 0x45, 0x00, 0xff, 0x43, 0x48}},
      {504, {0xce, 0xd3, 0xd8, 0xdd, 0xd1, 0xd6, 0xdb, 0xe0}},
      {1280, {0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x00}}}},
    {{8, 4},
     1536,
     0x4b2691ff8d0ff425,
     {{136, {0x00, 0xff, 0x40, 0x45, 0x00, 0xff, 0x43, 0x48}},
      {504, {0xce, 0xd3, 0xd8, 0xdd, 0xd1, 0xd6, 0xdb, 0xe0}},
      {1024, {0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x00}}}},
    {{4, 4},
     1280,
     0x7aad83c494a62fe5,
     {{72, {0xa0, 0xff, 0x40, 0x95, 0xd0, 0x2f, 0x73, 0xc8}},
      {248, {0xe0, 0x3f, 0x84, 0xd9, 0x10, 0x6f, 0xb7, 0x0c}},
      {768, {0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x00}}}},
    {{4, 2},
     1024,
     0x54d5e47d627bf105,
     {{72, {0xa0, 0xff, 0x40, 0x95, 0xd0, 0x2f, 0x73, 0xc8}},
      {248, {0xe0, 0x3f, 0x84, 0xd9, 0x10, 0x6f, 0xb7, 0x0c}},
      {640, {0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x00}}}},
    {{4, 1},
     1024,
     0xc9291bc541fb4275,
     {{72, {0xa0, 0xff, 0x40, 0x95, 0xd0, 0x2f, 0x73, 0xc8}},
      {248, {0xe0, 0x3f, 0x84, 0xd9, 0x10, 0x6f, 0xb7, 0x0c}},
      {640, {0x0f, 0x0f, 0x0f, 0x0f, 0x00, 0x00, 0x00, 0x00}}}},
    {{4, 8},
     1792,
     0xdcae9a83994dc4a5,
     {{72, {0xa0, 0xff, 0x40, 0x95, 0xd0, 0x2f, 0x73, 0xc8}},
      {248, {0xe0, 0x3f, 0x84, 0xd9, 0x10, 0x6f, 0xb7, 0x0c}},
      {1024, {0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x00}}}},
    {{2, 4},
     1280,
     0xf3bb50eb643c5665,
     {{72, {0x08, 0x0f, 0x00, 0x05, 0x04, 0x0b, 0x0f, 0x00}},
      {248, {0x08, 0x0f, 0x00, 0x05, 0x04, 0x0b, 0x0f, 0x00}},
      {768, {0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x00}}}},
    {{16, 16, 300, 300},
     1536,
     0x230530c2cd7a7146,
     {{200, {0xd8, 0x57, 0x50, 0x51, 0xd8, 0x57, 0x80, 0x51}},
      {760, {0x82, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00}},
      {1152, {0x0c, 0x54, 0xc8, 0x51, 0x0c, 0x54, 0xf0, 0x51}}}},
    {{4, 4, 500, 500},
     1536,
     0xb3307a31a2470825,
     {{100, {0x00, 0x00, 0x00, 0x00, 0x9a, 0x00, 0x00, 0x00}},
      {760, {0x49, 0x3a, 0x49, 0x3a, 0x49, 0x3a, 0x49, 0x3a}},
      {1216, {0x71, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00}}}},
    {{4, 16, 1000, 375},
     1280,
     0x7a52959b8a3d2f31,
     {{72, {0x7d, 0x1d, 0x74, 0x30, 0x7d, 0x3f, 0xf6, 0x52}},
      {248, {0x7d, 0x30, 0xf6, 0x63, 0x7d, 0x52, 0x1e, 0xd4}},
      {832, {0x0c, 0x54, 0xb0, 0x51, 0xc8, 0x51, 0x0c, 0x54}}}},
};

TEST_P(KvStore, WritesTheGoldenBytesOfEveryFormat) {
  constexpr int32_t kHeadDim = 8;
  for (const Golden& golden : kGolden) {
    SCOPED_TRACE(name_of(golden.format));
    const auto arena = make_arena_of_nan(shape_of(golden.format, kHeadDim, 64, 64));
    std::vector<float> keys(64 * 2 * kHeadDim);
    std::vector<float> values(keys.size());
    for (int32_t t = 0; t < 64; ++t) {
      for (int32_t c = 0; c < kHeadDim; ++c) {
        const size_t i = static_cast<size_t>((2 * t + 1) * kHeadDim + c);
        const int32_t key_bits = std::min<int32_t>(golden.format.key_bits, 8);
        const int32_t value_bits = std::min<int32_t>(golden.format.value_bits, 8);
        keys[i] = -2.0f + 0.5f * static_cast<float>(key_code(key_bits, t, c));
        values[i] = 1.0f + 0.25f * static_cast<float>(value_code(value_bits, t, c));
      }
    }
    store_step(backend(), pool_, *arena, {{1, 0, 64, keys.data(), values.data(), {}}}, 1);
    const KvPagesView pages = arena->view();
    const int64_t row = pages.row_index(1, 1, 1);
    EXPECT_EQ(pages.rows[row].high, 64);
    const std::byte* page = pages.page(pages.table(row)[0]);
    for (const auto& place : golden.places) {
      for (int i = 0; i < 8; ++i) {
        EXPECT_EQ(std::to_integer<int>(page[place.offset + i]), int{place.bytes[i]})
            << "byte " << place.offset + i;
      }
    }
    EXPECT_EQ(pages.layouts[0].used_bytes(), golden.bytes);
    EXPECT_EQ(fnv1a(page, golden.bytes), golden.hash);
  }
}

TEST_P(KvStore, WritesTheSameBytesAsScalar) {
  uint32_t seed = 0;
  for (const KvFormat format : named_formats()) {
    for (const int32_t head_dim : {8, 16, 24, 40, 64, 80, 96, 128, 200, 256}) {
      SCOPED_TRACE(testing::Message()
                   << name_of(format) << " head_dim " << head_dim << " seed " << ++seed);
      std::mt19937 random(seed);
      const int64_t count = 200 * 2 * head_dim;
      std::vector<float> keys = random_floats(random, count, 100.0f);
      std::vector<float> values = random_floats(random, count, 1e-5f);  // f16 subnormals
      keys[0] = 1e30f;
      keys[1] = -INFINITY;
      keys[static_cast<size_t>(4 * head_dim)] = NAN;
      values[0] = 65519.9f;
      std::fill_n(values.begin() + 2 * head_dim, head_dim, 3.25f);
      std::fill_n(keys.begin() + 2 * head_dim, head_dim, -0.0f);
      keys[static_cast<size_t>(2 * head_dim + 3)] = 0.0f;
      std::vector<std::byte> bytes[2];
      for (int i = 0; i < 2; ++i) {
        const auto arena = make_arena_of_nan(shape_of(format, head_dim, 200, 32));
        store_step(i == 0 ? cpu_backend(CpuIsa::scalar) : backend(), pool_, *arena,
                   {{2, 0, 200, keys.data(), values.data(), {}},
                    {0, 0, 70, values.data(), keys.data(), {}}},
                   1);
        for (const int64_t row : {6, 7}) {
          for (const int32_t slot : {0, 2}) {
            const auto stored = row_bytes(*arena, slot * 4 + row - 4, {}, slot == 0 ? 70 : 200);
            bytes[i].insert(bytes[i].end(), stored.begin(), stored.end());
          }
        }
      }
      EXPECT_EQ(bytes[0], bytes[1]);
    }
  }
}

TEST_P(KvStore, WritesTheSameBytesHoweverTheTokensAreCut) {
  uint32_t seed = 100;
  for (const KvFormat format : named_formats()) {
    for (const int32_t page_tokens : {16, 48, 64}) {
      SCOPED_TRACE(testing::Message()
                   << name_of(format) << " page_tokens " << page_tokens << " seed " << ++seed);
      std::mt19937 random(seed);
      constexpr int32_t kHeadDim = 24;
      constexpr int32_t kLength = 333;
      const std::vector<float> keys = random_floats(random, kLength * 2 * kHeadDim);
      const std::vector<float> values = random_floats(random, kLength * 2 * kHeadDim);
      const auto whole = make_arena_of_nan(shape_of(format, kHeadDim, kLength, page_tokens));
      store_step(backend(), pool_, *whole, {{0, 0, kLength, keys.data(), values.data(), {}}}, 0);
      const auto cut = make_arena_of_nan(shape_of(format, kHeadDim, kLength, page_tokens));
      // Two slots take the same tokens in different steps.
      int32_t done[2] = {0, 0};
      while (done[0] < kLength || done[1] < kLength) {
        std::vector<KvChunk> chunks;
        for (int32_t slot = 0; slot < 2; ++slot) {
          const uint32_t largest = random() % 3 == 0 ? 150 : 9;
          const int32_t count =
              std::min(static_cast<int32_t>(1 + random() % largest), kLength - done[slot]);
          if (count > 0) {
            const int64_t first = int64_t{done[slot]} * 2 * kHeadDim;
            chunks.push_back(
                {slot, done[slot], count, keys.data() + first, values.data() + first, {}});
            done[slot] += count;
          }
        }
        store_step(backend(), pool_, *cut, chunks, 0);
      }
      for (const int64_t head : {0, 1}) {
        const auto expected = row_bytes(*whole, head, {}, kLength);
        EXPECT_EQ(expected, row_bytes(*cut, head, {}, kLength));
        EXPECT_EQ(expected, row_bytes(*cut, 4 + head, {}, kLength));
      }
      cut->check_integrity();
    }
  }
}

// A policy can leave any number of tokens in a row. The next group follows the last of them.
TEST_P(KvStore, AppendsBehindANumberOfTokensThatIsNotWholeTiles) {
  constexpr int32_t kHeadDim = 40;
  std::mt19937 random(7);
  const std::vector<float> keys = random_floats(random, 128 * 2 * kHeadDim);
  const std::vector<float> values = random_floats(random, 128 * 2 * kHeadDim);
  for (const KvFormat format : named_formats()) {
    SCOPED_TRACE(name_of(format));
    const auto arena = make_arena_of_nan(shape_of(format, kHeadDim, 256, 48));
    store_step(backend(), pool_, *arena, {{0, 0, 64, keys.data(), values.data(), {}}}, 0);
    const KvPagesView pages = arena->view();
    pages.rows[0].high = 37;
    store_step(
        backend(), pool_, *arena,
        {{0, 64, 64, keys.data() + 64 * 2 * kHeadDim, values.data() + 64 * 2 * kHeadDim, {}}}, 0);
    EXPECT_EQ(pages.rows[0].high, 37 + 64);
    EXPECT_EQ(pages.rows[1].high, 128);
    const KvPageLayout& layout = pages.layouts[0];
    std::vector<float> one(4 * kHeadDim);
    for (int32_t token = 0; token < 37 + 64; ++token) {
      const int32_t position = token < 37 ? token : token + 27;
      const size_t at = static_cast<size_t>(position * 2 * kHeadDim);
      // The same token, encoded as the first of a page.
      std::vector<std::byte> page(static_cast<size_t>(layout.page_bytes));
      std::vector<float> dense(2 * kHeadDim);
      std::vector<std::byte> residual(static_cast<size_t>(pages.residual_layout.page_bytes));
      encode_token(pages.residual_layout, &keys[at], &values[at], residual.data(), 0);
      decode_token(pages.residual_layout, residual.data(), 0, &dense[0], &dense[kHeadDim]);
      encode_token(layout, &dense[0], &dense[kHeadDim], page.data(), 0);
      decode_token(layout, page.data(), 0, &one[0], &one[kHeadDim]);
      decode_token(layout, pages.page(pages.table(0)[token / layout.capacity]),
                   token % layout.capacity, &one[2 * kHeadDim], &one[3 * kHeadDim]);
      for (size_t i = 0; i < 2 * kHeadDim; ++i) {
        ASSERT_EQ(one[i], one[i + 2 * kHeadDim]) << "token " << token;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, KvStore, testing::ValuesIn(isas_with_own(&Backend::kv_store)),
                         [](const auto& instance) { return std::string(name(instance.param)); });

// ---- the quantiser

TEST(Quantiser, ErrsByHalfAStepAndWhatF16Adds) {
  for (const int32_t bits : {8, 4, 2, 1}) {
    for (uint32_t seed = 1; seed <= 300; ++seed) {
      SCOPED_TRACE(testing::Message() << bits << " bits, seed " << seed);
      std::mt19937 random(seed);
      std::vector<float> x =
          random_floats(random, 64, std::ldexp(1.0f, static_cast<int>(seed % 24) - 12));
      for (float& element : x) {
        element = to_f32(to_stored_f16(element));
      }
      const auto [lowest, highest] = std::minmax_element(x.begin(), x.end());
      const CodeRange range = code_range(*lowest, *highest, bits);
      const float scale = to_f32(range.scale);
      const float last = static_cast<float>((1 << bits) - 1);
      // The bound is half a step. The last code may also be off by the error of an f16 scale, for
      // each of the steps below it: a relative 2^-11, or half of the smallest subnormal.
      const float bound = 0.5f * scale + last * std::max(scale * 0x1p-11f, 0x1p-25f) * 1.001f;
      for (const float element : x) {
        const uint32_t code = code_of(element, range, bits);
        ASSERT_LE(code, (1u << bits) - 1);
        const float decoded = to_f32(range.zero) + scale * static_cast<float>(code);
        ASSERT_LE(std::abs(decoded - element), bound) << element;
      }
      EXPECT_EQ(code_of(*lowest, range, bits), 0u);
      EXPECT_EQ(to_f32(range.zero), *lowest);
    }
  }
}

TEST(Quantiser, RoundsToTheNearestEvenCode) {
  const CodeRange range = code_range(0.0f, 15.0f, 4);
  EXPECT_EQ(to_f32(range.scale), 1.0f);
  EXPECT_EQ(code_of(0.5f, range, 4), 0u);
  EXPECT_EQ(code_of(1.5f, range, 4), 2u);
  EXPECT_EQ(code_of(2.5f, range, 4), 2u);
  EXPECT_EQ(code_of(2.51f, range, 4), 3u);
  EXPECT_EQ(code_of(-9.0f, range, 4), 0u);
  EXPECT_EQ(code_of(99.0f, range, 4), 15u);
}

TEST(Quantiser, KeepsAConstantExactly) {
  for (const float constant : {0.0f, -0.0f, 3.25f, -65504.0f, 65504.0f}) {
    const CodeRange range = code_range(constant, constant, 4);
    EXPECT_EQ(range.scale.bits, 0);
    EXPECT_EQ(to_f32(range.zero), constant);
    EXPECT_EQ(code_of(constant, range, 4), 0u);
  }
  EXPECT_EQ(code_range(-0.0f, 0.0f, 4).zero.bits, 0);  // -0 is stored as +0
}

TEST(Quantiser, HoldsTheWholeRangeOfF16) {
  const CodeRange range = code_range(-65504.0f, 65504.0f, 1);
  EXPECT_EQ(to_f32(range.zero), -65504.0f);
  EXPECT_EQ(to_f32(range.scale), 65504.0f);  // 131008 would be infinite
  EXPECT_EQ(code_of(65504.0f, range, 1), 1u);
  EXPECT_EQ(code_of(-65504.0f, range, 1), 0u);
}

TEST(StoredF16, IsNeverInfiniteNorNan) {
  EXPECT_EQ(to_f32(to_stored_f16(INFINITY)), 65504.0f);
  EXPECT_EQ(to_f32(to_stored_f16(-INFINITY)), -65504.0f);
  EXPECT_EQ(to_f32(to_stored_f16(1e9f)), 65504.0f);
  EXPECT_EQ(to_f32(to_stored_f16(NAN)), 65504.0f);
  EXPECT_EQ(to_f32(to_stored_f16(-NAN)), 65504.0f);
  EXPECT_EQ(to_f32(to_stored_f16(-65504.0f)), -65504.0f);
}

// A page of 128 tokens is full in the source, and the fork has half of its tokens.
TEST(KeySketches, DescribeAForksOwnTokens) {
  KvArenaShape shape = shape_of(kKvK8V4, 64, 400, 128);
  shape.sketch_bytes = key_sketch_bytes(shape.head_dim, 128);
  shape.page_bytes += shape.sketch_bytes;
  const auto arena = make_arena_of_nan(shape);
  ThreadPool pool(1);
  const Backend& backend = cpu_backend(CpuIsa::scalar);
  std::mt19937 random(5);
  const std::vector<float> keys =
      random_floats(random, 192 * int64_t{shape.kv_heads} * shape.head_dim);
  store_step(backend, pool, *arena, {{0, 0, 192, keys.data(), keys.data(), {0, 0}}}, 0);
  const KvFork forks[] = {{.from = 0, .to = 1, .tiers = {0, 0}, .high = 64}};
  backend.kv_fork({arena->pool(), forks}, pool.stream());
  store_step(backend, pool, *arena, {{2, 0, 64, keys.data(), keys.data(), {0, 0}}}, 0);
  const KvPagesView pages = arena->view();
  for (int32_t head = 0; head < shape.kv_heads; ++head) {
    const auto sketch = [&](int32_t slot) {
      const int32_t first_page = pages.table(pages.row_index(slot, 0, head))[0];
      const std::byte* bytes = key_sketch(pages.layouts[0], pages.page(first_page));
      return std::vector<std::byte>(bytes, bytes + KeySketchLayout{shape.head_dim, 128}.bytes());
    };
    EXPECT_EQ(sketch(1), sketch(2)) << head;
    EXPECT_NE(sketch(1), sketch(0)) << head;
  }
}

TEST(PageCodec, GivesBackWhatItHoldsExactly) {
  for (const KvFormat format : {kKvF32, kKvF16}) {
    const KvPageLayout layout = KvPageLayout::make(format, 24, 32);
    std::vector<std::byte> page(static_cast<size_t>(layout.page_bytes));
    std::vector<float> keys(24), values(24), out(48);
    for (int32_t token = 0; token < 32; ++token) {
      for (int32_t c = 0; c < 24; ++c) {
        keys[static_cast<size_t>(c)] = static_cast<float>(token * 32 + c);
        values[static_cast<size_t>(c)] = -static_cast<float>(token * 32 + c);
      }
      encode_token(layout, keys.data(), values.data(), page.data(), token);
      decode_token(layout, page.data(), token, &out[0], &out[24]);
      EXPECT_TRUE(std::equal(keys.begin(), keys.end(), out.begin()));
      EXPECT_TRUE(std::equal(values.begin(), values.end(), out.begin() + 24));
    }
  }
}

}  // namespace
}  // namespace tessera
