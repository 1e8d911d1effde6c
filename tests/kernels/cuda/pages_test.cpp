#include <gtest/gtest.h>

#include "tests/kernels/cuda/two_arenas.h"

namespace tessera {
namespace {

class CudaPages : public TwoArenas {};

TEST_P(CudaPages, StoreTheOraclesBytesInEveryFormat) {
  for (const KvFormat format : named_formats()) {
    if (!serves(GetParam(), format)) {
      continue;  // AreRefusedInFormatsWithoutKernels
    }
    for (const int32_t head_dim : {8, 48, 64}) {
      if (format.is_sparse() && head_dim != 48) {
        continue;  // KeepTheChannelsTheOracleKeeps has other head dimensions
      }
      SCOPED_TRACE(testing::Message() << name_of(format) << " " << head_dim);
      make(shape_of({format}, head_dim, head_dim == 48 ? 48 : 64));
      store({{2, 0, 30}, {0, 0, 200}}, {}, {1});
      store({{0, 200, 70}, {2, 30, 34}}, {},
            {1});  // a group that began in the residual buffer; one that fills
      store({{0, 270, 1}, {2, 64, 1}}, {}, {1});
      expect_same({}, {271, 0, 65});
    }
  }
}

// The engine names the format and the backend when it refuses.
TEST_P(CudaPages, AreRefusedInFormatsWithoutKernels) {
  EXPECT_TRUE(serves(GetParam(), kKvK4V2));
  EXPECT_FALSE(serves(GetParam(), kKvK4V2R));
  EXPECT_FALSE(serves(GetParam(), kKvFp8));
}

TEST_P(CudaPages, RoundsAsTheOracleWhereNumbersAreLargeOrEqual) {
  for (const float spread : {1e-6f, 30000.0f, 0.0f}) {
    for (const KvFormat format : {kKvK4V2, kKvS50, kKvS70K4V4}) {
      make(shape_of({format}, 16, 64));
      spread_ = spread;
      store({{0, 0, 130}}, {}, {0});
      expect_same({}, {130, 0, 0});
    }
  }
}

// Several numbers of kept channels, a large head dimension, and many equal channels.
TEST_P(CudaPages, KeepTheChannelsTheOracleKeeps) {
  for (const KvFormat format : {kKvS70, kKvS50K4V4, KvFormat{16, 4, 8, 999}}) {
    for (const auto& [head_dim, different] : {std::pair{72, 3}, std::pair{128, 0}}) {
      SCOPED_TRACE(testing::Message() << name_of(format) << " " << head_dim);
      make(shape_of({format}, head_dim, 16));
      different_ = different;
      store({{1, 0, 64}}, {}, {1});
      expect_same({}, {0, 64, 0});
    }
  }
}

// Any chunks: each token is at its place of its group.
TEST_P(CudaPages, KeepTheNewestTokensInTheResidualBuffer) {
  for (const std::vector<int32_t>& chunks : std::vector<std::vector<int32_t>>{
           {30, 50, 1, 60}, {64, 64, 1, 1}, {150, 1, 100, 63}, {300, 20, 64}, {63, 1, 1, 64}}) {
    make(shape_of({kKvS50}, 16, 64));
    newest_ = 32;
    int32_t stored = 0;
    for (const int32_t count : chunks) {
      store({{1, stored, count}}, {}, {1});
      stored += count;
      SCOPED_TRACE(testing::Message() << stored << " tokens");
      expect_same({}, {0, stored, 0});
      const KvPagesView one = (*expected_)->view();
      const KvPagesView other = (*actual_)->view();
      for (int32_t head = 0; head < shape_.kv_heads; ++head) {
        const int64_t row = one.row_index(1, 1, head);
        EXPECT_EQ(std::memcmp(other.residual(row), one.residual(row),
                              static_cast<size_t>(one.residual_layout.page_bytes)),
                  0);
      }
    }
  }
}

// For rows in which a policy left a number of tokens that is not whole tiles.
TEST_P(CudaPages, CloseGroupsBehindAnyNumberOfTokens) {
  for (const KvFormat format : named_formats()) {
    if (format == kKvF32 || !serves(GetParam(), format)) {
      continue;
    }
    SCOPED_TRACE(testing::Message() << name_of(format));
    make(shape_of({format}, 80, 32));
    store({{0, 0, 64}}, {}, {0});
    for (const ReachedArena* arena : {expected_.get(), actual_.get()}) {
      for (int64_t row = 0; row < shape_.slot_rows(); ++row) {
        int32_t& high = (*arena)->view().rows[row].high;
        high -= high == 0 ? 0 : 11 + static_cast<int32_t>(row);
      }
    }
    store({{0, 64, 130}}, {}, {0});
    for (int64_t row = 0; row < shape_.kv_heads; ++row) {
      const KvPagesView one = (*expected_)->view();
      const KvPagesView other = (*actual_)->view();
      ASSERT_EQ(other.rows[row].high, one.rows[row].high);
      for (int32_t t = 0; t < one.rows[row].high; ++t) {
        std::vector<float> keys(80), values(80), other_keys(80), other_values(80);
        const int32_t capacity = one.layouts[0].capacity;
        decode_token(one.layouts[0], one.page(one.table(row)[t / capacity]), t % capacity,
                     keys.data(), values.data());
        decode_token(one.layouts[0], other.page(other.table(row)[t / capacity]), t % capacity,
                     other_keys.data(), other_values.data());
        ASSERT_EQ(other_keys, keys) << "token " << t;
        ASSERT_EQ(other_values, values) << "token " << t;
      }
    }
  }
}

TEST_P(CudaPages, TakeThePagesTheOracleTakes) {
  make(shape_of({kKvF16}, 8, 16));
  resize({}, {{0, {}, 200}, {1, {}, 33}});
  resize({0}, {{2, {}, 100}, {1, {}, 64}});
  for (int64_t row = 0; row < shape_.rows(); ++row) {
    const KvPagesView one = (*expected_)->view();
    const KvPagesView other = (*actual_)->view();
    EXPECT_TRUE(std::equal(one.table(row), one.table(row) + one.row_pages, other.table(row)));
  }
  expect_same({}, {0, 0, 0});
}

// The second layer has a window of 100. Every op that treats its rows in another way takes a turn.
TEST_P(CudaPages, MoveInWindowsAsTheOraclesDo) {
  KvArenaShape shape = shape_of({kKvK8V4, kKvK4V2}, 8, 16);
  shape.page_bytes = 512;  // 16 tokens of one format, 32 of the other
  shape.windows.assign(static_cast<size_t>(shape.layers), 0);
  shape.windows[1] = 100;
  shape.pages = static_cast<int32_t>(shape.rows()) * shape.row_pages() + 100;
  shape.prefix_block_tokens = 64;
  shape.prefix_block_tiers = {0, 1};
  make(shape);
  const KvTiers tiers{0, 1};
  const auto each = [&](auto&& op) {
    both([&](const Backend& backend, KvArena& arena, Stream stream) {
      op(backend, arena.pool(), stream);
    });
    for (int32_t slot = 0; slot < shape_.slots; ++slot) {
      expect_same_tokens(slot, tiers, 0);
      EXPECT_EQ((*actual_)->slot_pages(slot), (*expected_)->slot_pages(slot));
    }
    for (int32_t block = 0; block < 3; ++block) {
      EXPECT_EQ((*actual_)->prefix_block_pages(block), (*expected_)->prefix_block_pages(block));
    }
  };
  const auto pass = [&](KvPassed passed) {
    each([&](const Backend& backend, const KvPool& pool, Stream stream) {
      backend.kv_resize(
          {.pool = pool, .released = {}, .grown = {}, .taken = {}, .passed = {&passed, 1}}, stream);
    });
  };
  store({{0, 0, 200}}, tiers, {0, 1});
  const KvShare shares[] = {{.slot = 0, .first = 0, .handle = 0},
                            {.slot = 0, .first = 64, .handle = 1},
                            {.slot = 0, .first = 128, .handle = 2}};
  each([&](const Backend& backend, const KvPool& pool, Stream stream) {
    backend.kv_share({pool, shares}, stream);
  });
  pass({0, 0, 0, 192});
  const KvFork forks[] = {
      {.from = 0, .to = 1, .tiers = tiers, .high = 192, .tokens = 200, .passed = 192}};
  each([&](const Backend& backend, const KvPool& pool, Stream stream) {
    backend.kv_fork({pool, forks}, stream);
  });
  const int64_t before = (*actual_)->prefix_block_pages(0);
  const int32_t dropped[] = {0};
  each([&](const Backend& backend, const KvPool& pool, Stream stream) {
    backend.kv_evict({pool, dropped, true}, stream);
  });
  EXPECT_EQ((*actual_)->prefix_block_pages(0), before / 2);
  const int32_t both_slots[] = {0, 1};
  each([&](const Backend& backend, const KvPool& pool, Stream stream) {
    backend.kv_resize({.pool = pool, .released = both_slots, .grown = {}}, stream);
  });
  const PrefixBlock demoted[] = {{0, 0}, {1, 0}};
  std::vector<std::vector<std::byte>> scratches;
  each([&](const Backend& backend, const KvPool& pool, Stream stream) {
    scratches.emplace_back(
        static_cast<size_t>(backend.kv_demote_scratch_bytes(pool.pages, stream)) + 64);
    backend.kv_demote({pool, demoted, 1, scratches.back()}, stream);
  });
  const PrefixBlock blocks[] = {{0, 1}, {1, 1}, {2, 0}};
  const KvAttachment attachments[] = {{2, tiers, blocks, 192}};
  each([&](const Backend& backend, const KvPool& pool, Stream stream) {
    backend.kv_attach({pool, attachments}, stream);
  });
  store({{2, 192, 158}}, tiers, {0, 1});
  pass({2, 0, 192, 320});
  std::vector<std::vector<std::byte>> snapshots;
  each([&](const Backend& backend, const KvPool& pool, Stream stream) {
    snapshots.emplace_back(size_t{1} << 20);
    backend.kv_swap_out({pool, {2, tiers, 350, 320}, snapshots.back()}, stream);
  });
  size_t i = 0;
  each([&](const Backend& backend, const KvPool& pool, Stream stream) {
    backend.kv_swap_in({pool, {0, tiers, 350, 320}, snapshots[i++]}, stream);
  });
  const int32_t all[] = {0, 1, 2};
  each([&](const Backend& backend, const KvPool& pool, Stream stream) {
    backend.kv_resize({.pool = pool, .released = all, .grown = {}}, stream);
    backend.kv_evict({pool, all}, stream);
  });
  EXPECT_EQ((*actual_)->free_pages(), shape.pages);
}

TEST_P(CudaPages, MoveAsTheOraclesDoInRandomSteps) {
  KvArenaShape shape = shape_of({kKvK8V4, kKvK4V2}, 8, 16);
  shape.page_bytes = 512;  // 16 tokens of one format, 32 of the other
  shape.pages = static_cast<int32_t>(shape.rows()) * shape.row_pages() + 100;
  shape.token_scores = true;
  shape.prefix_block_tokens = 64;
  shape.prefix_block_tiers = {0, 1};
  make(shape);
  const KvTiers tiers{0, 1};
  std::vector<int32_t> lengths(3, 0);
  std::vector<int32_t> prefix_blocks;
  for (int32_t step = 0; step < 60; ++step) {
    SCOPED_TRACE(testing::Message() << "seed 7 step " << step);
    const auto draw = [&](size_t below) { return static_cast<int32_t>(random_() % below); };
    const int32_t slot = draw(3);
    int32_t& length = lengths[static_cast<size_t>(slot)];
    if (length == 0 && draw(2) == 0 && !prefix_blocks.empty()) {
      std::vector<PrefixBlock> attached;
      for (const int32_t handle : prefix_blocks) {
        attached.push_back({handle, 0});
      }
      const KvAttachment attachments[] = {{slot, tiers, attached}};
      const int32_t owned = 64 * draw(prefix_blocks.size() + 1);
      both([&](const Backend& backend, KvArena& arena, Stream stream) {
        backend.kv_attach({arena.pool(), attachments}, stream);
        backend.kv_own({.pool = arena.pool(), .slot = slot, .tier = 0, .tokens = owned}, stream);
      });
      length = static_cast<int32_t>(prefix_blocks.size()) * 64;
    } else if (length == 0 && lengths[static_cast<size_t>((slot + 1) % 3)] > 0) {
      const int32_t from = (slot + 1) % 3;
      const KvFork forks[] = {{from, slot, tiers}};
      both([&](const Backend& backend, KvArena& arena, Stream stream) {
        backend.kv_fork({arena.pool(), forks}, stream);
      });
      length = lengths[static_cast<size_t>(from)];
    } else if (length < 200) {
      const int32_t count = 1 + draw(150);
      store({{slot, length, count}}, tiers, {0, 1});
      length += count;
    } else if (prefix_blocks.size() < 2 && draw(2) == 0) {
      const KvShare shares[] = {{slot, 0, 64 * static_cast<int32_t>(prefix_blocks.size()),
                                 static_cast<int32_t>(prefix_blocks.size())}};
      both([&](const Backend& backend, KvArena& arena, Stream stream) {
        backend.kv_share({arena.pool(), shares}, stream);
      });
      prefix_blocks.push_back(static_cast<int32_t>(prefix_blocks.size()));
    } else {
      resize({slot}, {});
      length = 0;
      if (draw(4) == 0) {
        both([&](const Backend& backend, KvArena& arena, Stream stream) {
          backend.kv_evict({arena.pool(), prefix_blocks}, stream);
        });
        prefix_blocks.clear();
      }
    }
    expect_same(tiers, lengths);
    if (HasFatalFailure() || HasNonfatalFailure()) {
      return;
    }
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaPages);
INSTANTIATE_TEST_SUITE_P(Cuda, CudaPages, testing::ValuesIn(devices_of_this_machine()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace tessera
