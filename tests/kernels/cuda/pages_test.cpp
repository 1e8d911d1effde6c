#include <gtest/gtest.h>

#include "tests/kernels/cuda/two_arenas.h"

namespace tessera {
namespace {

class CudaPages : public TwoArenas {};

TEST_P(CudaPages, StoreTheOraclesBytesInEveryFormat) {
  for (const KvFormat format : dense_formats()) {
    for (const int32_t head_dim : {8, 48, 64}) {
      SCOPED_TRACE(testing::Message()
                   << int{format.key_bits} << " " << int{format.value_bits} << " " << head_dim);
      make(shape_of({format}, head_dim, head_dim == 48 ? 48 : 64));
      store({{2, 0, 30}, {0, 0, 200}}, {}, {1});
      store({{0, 200, 70}, {2, 30, 34}}, {},
            {1});  // a group that began in the window; one that fills
      store({{0, 270, 1}, {2, 64, 1}}, {}, {1});
      expect_same({}, {271, 0, 65});
    }
  }
}

TEST_P(CudaPages, RoundsAsTheOracleWhereNumbersAreLargeOrEqual) {
  for (const float spread : {1e-6f, 30000.0f, 0.0f}) {
    make(shape_of({kKvK4V2}, 16, 64));
    spread_ = spread;
    store({{0, 0, 130}}, {}, {0});
    expect_same({}, {130, 0, 0});
  }
}

// Where a policy left a number of tokens that is not whole tiles.
TEST_P(CudaPages, CloseGroupsBehindAnyNumberOfTokens) {
  for (const KvFormat format : dense_formats()) {
    if (format == kKvF32) {
      continue;
    }
    SCOPED_TRACE(testing::Message() << int{format.key_bits} << " " << int{format.value_bits});
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

TEST_P(CudaPages, MoveAsTheOraclesDoInRandomSteps) {
  KvArenaShape shape = shape_of({kKvK8V4, kKvK4V2}, 8, 16);
  shape.page_bytes = 512;  // 16 tokens of the one, 32 of the other
  shape.pages = static_cast<int32_t>(shape.rows()) * shape.row_pages() + 100;
  shape.marks = true;
  shape.unit_tokens = 64;
  shape.unit_tiers = {0, 1};
  make(shape);
  const KvTiers tiers{0, 1};
  std::vector<int32_t> lengths(3, 0);
  std::vector<int32_t> units;
  for (int32_t step = 0; step < 60; ++step) {
    SCOPED_TRACE(testing::Message() << "seed 7 step " << step);
    const auto draw = [&](size_t below) { return static_cast<int32_t>(random_() % below); };
    const int32_t slot = draw(3);
    int32_t& length = lengths[static_cast<size_t>(slot)];
    if (length == 0 && draw(2) == 0 && !units.empty()) {
      std::vector<KvUnit> attached;
      for (const int32_t handle : units) {
        attached.push_back({handle, 0});
      }
      const KvAttachment attachments[] = {{slot, tiers, attached}};
      both([&](const Backend& backend, KvArena& arena, Stream stream) {
        backend.kv_attach({arena.pool(), attachments}, stream);
      });
      length = static_cast<int32_t>(units.size()) * 64;
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
    } else if (units.size() < 2 && draw(2) == 0) {
      const KvShare shares[] = {
          {slot, 0, 64 * static_cast<int32_t>(units.size()), static_cast<int32_t>(units.size())}};
      both([&](const Backend& backend, KvArena& arena, Stream stream) {
        backend.kv_share({arena.pool(), shares}, stream);
      });
      units.push_back(static_cast<int32_t>(units.size()));
    } else {
      resize({slot}, {});
      length = 0;
      if (draw(4) == 0) {
        both([&](const Backend& backend, KvArena& arena, Stream stream) {
          backend.kv_drop({arena.pool(), units}, stream);
        });
        units.clear();
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
