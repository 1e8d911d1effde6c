#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "tests/kernels/attention_sequences.h"

namespace tessera {
namespace {

TEST(KvPageLayout, RoundsCapacityToKeyTilesAndBytesToTheMultiple) {
  const KvPageLayout layout = KvPageLayout::make(kKvF16, 8, 17);
  EXPECT_EQ(layout.capacity, 32);
  EXPECT_EQ(layout.page_bytes, 32 * 8 * 2 * 2);
  EXPECT_EQ(KvPageLayout::make(KvFormat{16, 32}, 24, 16).page_bytes, 16 * 24 * (2 + 4));
  EXPECT_EQ(KvPageLayout::make(kKvF16, 8, 16).page_bytes % KvPageLayout::kByteMultiple, 0);
}

TEST(KvPageLayout, GivesEveryElementItsOwnBytesInsideThePage) {
  for (const KvFormat format : {kKvF32, kKvF16, KvFormat{16, 32}, KvFormat{32, 16}}) {
    for (const int32_t head_dim : {8, 80}) {
      const KvPageLayout layout = KvPageLayout::make(format, head_dim, 48);
      std::set<int64_t> taken;
      const auto take = [&](int64_t offset, int64_t bytes) {
        for (int64_t i = offset; i < offset + bytes; ++i) {
          EXPECT_TRUE(taken.insert(i).second) << "byte " << i;
        }
      };
      for (int32_t token = 0; token < layout.capacity; ++token) {
        for (int32_t channel = 0; channel < head_dim; ++channel) {
          take(layout.key_offset(token, channel), layout.key_bytes());
        }
        take(layout.value_offset(token), head_dim * layout.value_bytes());
      }
      EXPECT_GE(*taken.begin(), 0);
      EXPECT_LT(*taken.rbegin(), layout.page_bytes);
    }
  }
}

class KvStore : public testing::TestWithParam<CpuIsa> {
 protected:
  const Backend& backend() const { return cpu_backend(GetParam()); }
  ThreadPool pool_{2};
};

// Token t's key channel c is 32 t + c, its value channel c is -(32 t + c): small whole numbers,
// which f16 holds exactly. The bytes below are the contract with every kernel and saved page.
TEST_P(KvStore, WritesTheGoldenBytesOfAPage) {
  const auto arena = KvArena::make({KvPageLayout::make(kKvF16, 8, 16), 4, 1, 1, 2, 32});
  const std::vector<KvRowResize> change{{0, 0, 2}};
  backend().kv_resize({.pool = arena->pool(), .changes = change}, pool_.stream());
  constexpr int32_t kTokens = 18;
  std::vector<float> keys(kTokens * 16);
  std::vector<float> values(kTokens * 16);
  for (int32_t t = 0; t < kTokens; ++t) {
    for (int32_t c = 0; c < 8; ++c) {
      keys[static_cast<size_t>(t * 16 + 8 + c)] = static_cast<float>(32 * t + c);
      values[static_cast<size_t>(t * 16 + 8 + c)] = -static_cast<float>(32 * t + c);
    }
  }
  const std::vector<SequenceSpan> spans{{0, 0, kTokens, 0}};
  backend().kv_store(
      {{keys.data(), kTokens, 16, 16}, {values.data(), kTokens, 16, 16}, spans, arena->view(), 0},
      pool_.stream());
  const auto half_at = [&](int32_t page_of_row, int64_t byte) {
    const int32_t page_id = arena->view().row(0, 0, 1)[page_of_row];
    uint16_t bits = 0;
    std::memcpy(&bits, arena->view().page(page_id) + byte, sizeof(bits));
    return bits;
  };
  EXPECT_EQ(half_at(0, 0), 0x0000);            // token 0, key channel 0: 0
  EXPECT_EQ(half_at(0, 2), 0x5000);            // token 1, key channel 0: 32
  EXPECT_EQ(half_at(0, 30), 0x5f80);           // token 15, key channel 0: 480
  EXPECT_EQ(half_at(0, 32), 0x3c00);           // token 0, key channel 1: 1
  EXPECT_EQ(half_at(0, 34), 0x5020);           // token 1, key channel 1: 33
  EXPECT_EQ(half_at(0, 7 * 32 + 30), 0x5f9c);  // token 15, key channel 7: 487
  EXPECT_EQ(half_at(0, 256), 0x8000);          // token 0, value channel 0: -0
  EXPECT_EQ(half_at(0, 258), 0xbc00);          // token 0, value channel 1: -1
  EXPECT_EQ(half_at(0, 272), 0xd000);          // token 1, value channel 0: -32
  EXPECT_EQ(half_at(0, 510), 0xdf9c);          // token 15, value channel 7: -487
  EXPECT_EQ(half_at(1, 0), 0x6000);            // token 16, key channel 0: 512
  EXPECT_EQ(half_at(1, 2), 0x6040);            // token 17, key channel 0: 544
  EXPECT_EQ(half_at(1, 4), 0x0000);            // token 18 was not stored
  EXPECT_EQ(half_at(1, 256), 0xe000);          // token 16, value channel 0: -512
}

TEST_P(KvStore, WritesTheSameBytesAsScalar) {
  for (const KvFormat format : {kKvF32, kKvF16, KvFormat{16, 32}, KvFormat{32, 16}}) {
    for (const int32_t head_dim : {8, 24, 80, 128}) {
      const uint32_t seed = static_cast<uint32_t>(head_dim);
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      std::mt19937 random(seed);
      const int32_t rows = 70;
      const int64_t cols = 3 * head_dim;
      std::vector<float> keys = random_floats(random, rows * cols, 100.0f);
      std::vector<float> values = random_floats(random, rows * cols, 1e-5f);  // f16 subnormals
      keys[0] = 1e30f;
      keys[1] = -INFINITY;
      values[0] = 65519.9f;
      std::vector<std::vector<std::byte>> bytes;
      for (const CpuIsa isa : {CpuIsa::scalar, GetParam()}) {
        const auto arena =
            KvArena::make({KvPageLayout::make(format, head_dim, 16), 60, 2, 2, 3, 80});
        const std::vector<KvRowResize> changes{{0, 0, 5}, {1, 0, 5}};
        backend().kv_resize({.pool = arena->pool(), .changes = changes}, pool_.stream());
        const std::vector<SequenceSpan> spans{{1, 0, 61, 3}, {0, 61, 9, 11}};
        cpu_backend(isa).kv_store({{keys.data(), rows, cols, cols},
                                   {values.data(), rows, cols, cols},
                                   spans,
                                   arena->view(),
                                   1},
                                  pool_.stream());
        const std::byte* first = arena->view().arena;
        bytes.emplace_back(first, first + arena->shape().arena_bytes());
      }
      EXPECT_EQ(bytes[0], bytes[1]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, KvStore, testing::ValuesIn(isas_of_this_machine()),
                         [](const auto& instance) { return std::string(name(instance.param)); });

}  // namespace
}  // namespace tessera
