// Queries and keys that kv_store rotates, compared with the op `rope` before it.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "tests/kernels/cuda/two_arenas.h"

namespace tessera {
namespace {

constexpr int32_t kGqa = 3;  // query heads of a KV head

struct Chunk {
  int32_t slot;
  int32_t context;
  int32_t count;
};

// A rotation of a model: tables of queries and keys, which differ if `two_tables`. `framed`: keys
// are stored in a frame.
struct Rotation {
  int32_t rotary_dim = 0;
  bool two_tables = false;
  bool framed = false;
};

class RopeStore : public testing::TestWithParam<Device> {
 protected:
  void make(const KvArenaShape& shape, const Rotation& rotation) {
    shape_ = shape;
    rotation_ = rotation;
    for (std::unique_ptr<ReachedArena>* arena : {&apart_, &together_}) {
      *arena = std::make_unique<ReachedArena>(GetParam(), shape);
      std::memset((**arena)->view().arena, 0xff, static_cast<size_t>(shape.arena_bytes()));
      std::memset((**arena)->view().residuals, 0xff,
                  static_cast<size_t>(shape.slots * shape.slot_residual_bytes()));
    }
    for (std::vector<float>* table : {&query_table_, &key_table_}) {
      *table = random_floats(random_, int64_t{shape.context} * rotation.rotary_dim);
    }
    centre_ = random_floats(random_, rotation.framed ? key_cols() : 0);
    scale_.clear();
    for (size_t c = 0; c < centre_.size(); ++c) {
      const size_t channel = c % static_cast<size_t>(shape.head_dim);
      const auto half = static_cast<size_t>(rotation.rotary_dim / 2);
      const size_t pair = channel < 2 * half ? channel % half : channel;
      scale_.push_back(pair % 3 == 0 ? 0.125f : 2.0f);
    }
    stored_.assign(static_cast<size_t>(shape.slots), 0);
  }

  // Stores random tokens of a step in both arenas. `unused`: batch rows behind the chunks, of
  // entries of a plan without tokens.
  void store(const std::vector<Chunk>& chunks, int32_t newest = 0, int32_t unused = 0) {
    std::vector<SequenceSpan> spans;
    std::vector<KvGrowth> grown;
    std::vector<int32_t> positions;
    for (const Chunk& chunk : chunks) {
      spans.push_back({chunk.slot,
                       static_cast<int32_t>(positions.size()),
                       chunk.count,
                       chunk.context,
                       {},
                       newest,
                       0});
      grown.push_back({chunk.slot,
                       {},
                       kKvGroup * (spans.back().closed_after() - spans.back().closed_before())});
      for (int32_t i = 0; i < chunk.count; ++i) {
        positions.push_back(chunk.context + i);
      }
      stored_[static_cast<size_t>(chunk.slot)] = chunk.context + chunk.count;
    }
    spans.resize(spans.size() + static_cast<size_t>(unused));
    positions.resize(positions.size() + static_cast<size_t>(unused));
    const int64_t heads = shape_.kv_heads * (kGqa + 2);
    const std::vector<float> qkv =
        random_floats(random_, std::ssize(positions) * heads * shape_.head_dim);
    const std::vector<float> rotated = store_in(**apart_, false, spans, grown, positions, qkv);
    const std::vector<float> fused = store_in(**together_, true, spans, grown, positions, qkv);
    expect_same(rotated, fused, qkv);
  }

 private:
  int64_t query_cols() const { return int64_t{shape_.kv_heads} * kGqa * shape_.head_dim; }
  int64_t key_cols() const { return int64_t{shape_.kv_heads} * shape_.head_dim; }

  // Returns: the rows of q, k and v after the step.
  std::vector<float> store_in(KvArena& arena, bool together, const std::vector<SequenceSpan>& spans,
                              const std::vector<KvGrowth>& grown,
                              const std::vector<int32_t>& positions, std::vector<float> qkv) {
    const Backend& backend = *GetParam().backend;
    const Stream stream = GetParam().stream;
    const int64_t cols = query_cols() + 2 * key_cols();
    const MatrixView<float> rows{qkv.data(), std::ssize(positions), cols, cols};
    const MatrixView<float> queries = rows.columns(0, query_cols());
    const MatrixView<float> keys = rows.columns(query_cols(), key_cols());
    const int64_t sines = int64_t{shape_.context} * rotation_.rotary_dim / 2;
    const auto table = [sines](const std::vector<float>& of) {
      return RopeTable{of.data(), of.data() + sines};
    };
    const RopeTable of_keys = table(key_table_);
    const RopeTable of_queries = rotation_.two_tables ? table(query_table_) : of_keys;
    backend.kv_resize({.pool = arena.pool(), .released = {}, .grown = grown}, stream);
    if (!together) {
      for (const auto& [heads, by] : {std::pair{queries, of_queries}, std::pair{keys, of_keys}}) {
        backend.rope({.heads = heads,
                      .positions = positions,
                      .cos = by.cos,
                      .sin = by.sin,
                      .head_dim = shape_.head_dim,
                      .rotary_dim = rotation_.rotary_dim},
                     stream);
      }
    }
    int64_t groups = 0;
    for (const SequenceSpan& span : spans) {
      groups += span.count > 0 ? dense_groups(span) : 0;
    }
    DenseGroups dense(groups * shape_.kv_heads * arena.view().residual_layout.page_bytes);
    KvStoreArgs args{.keys = keys,
                     .values = rows.columns(query_cols() + key_cols(), key_cols()),
                     .sequences = spans,
                     .pages = arena.view(),
                     .layer = 1,
                     .dense = dense.bytes(),
                     .frame = {.centre = centre_, .scale = scale_, .queries = queries}};
    if (together) {
      args.rope = {.rotary_dim = rotation_.rotary_dim,
                   .positions = positions,
                   .queries = queries,
                   .query_table = of_queries,
                   .key_table = of_keys};
    }
    backend.kv_store(args, stream);
    GetParam().wait(stream);
    return qkv;
  }

  void expect_same(const std::vector<float>& rotated, const std::vector<float>& fused,
                   const std::vector<float>& before) const {
    const int64_t cols = query_cols() + 2 * key_cols();
    for (int64_t i = 0; i < std::ssize(fused); ++i) {
      const auto place = static_cast<size_t>(i);
      const std::vector<float>& expected = i % cols < query_cols() ? rotated : before;
      ASSERT_EQ(std::bit_cast<uint32_t>(fused[place]), std::bit_cast<uint32_t>(expected[place]))
          << "row " << i / cols << ", column " << i % cols;
    }
    EXPECT_NE(rotated, before);
    for (int64_t row = 0; row < shape_.rows(); ++row) {
      const int32_t length = stored_[static_cast<size_t>(row / shape_.slot_rows())];
      ASSERT_EQ((*together_)->view().rows[row].high, (*apart_)->view().rows[row].high);
      ASSERT_EQ(row_bytes(**together_, row, {}, length), row_bytes(**apart_, row, {}, length))
          << "row " << row;
    }
    EXPECT_EQ(std::memcmp((*together_)->view().residuals, (*apart_)->view().residuals,
                          static_cast<size_t>(shape_.slots * shape_.slot_residual_bytes())),
              0);
  }

  std::mt19937 random_{20261128};
  KvArenaShape shape_;
  Rotation rotation_;
  std::unique_ptr<ReachedArena> apart_, together_;
  std::vector<float> query_table_, key_table_;  // cosines of all positions, then sines
  std::vector<float> centre_, scale_;           // of the frame; empty: none
  std::vector<int32_t> stored_;                 // tokens of each slot
};

TEST_P(RopeStore, StoresTheBytesOfRopeAndStoreInEveryFormat) {
  for (const KvFormat format : named_formats()) {
    if (!serves(GetParam(), format)) {
      continue;
    }
    SCOPED_TRACE(testing::Message() << name_of(format));
    make(shape_of({format}, 48, 48), {.rotary_dim = 48});
    store({{2, 0, 30}, {0, 0, 200}});
    store({{0, 200, 70}, {2, 30, 34}});  // a group that began before; one that fills
    store({{0, 270, 1}, {2, 64, 1}});
  }
}

TEST_P(RopeStore, RotatesAPartOfAHeadAndQueriesByATableOfTheirOwn) {
  for (const int32_t head_dim : {16, 64, 128}) {
    for (const int32_t rotary_dim : {2, 12, head_dim / 2 + 6, head_dim}) {
      if (rotary_dim > head_dim) {
        continue;
      }
      for (const bool two_tables : {false, true}) {
        SCOPED_TRACE(testing::Message() << rotary_dim << " of " << head_dim);
        make(shape_of({kKvF16}, head_dim, 64),
             {.rotary_dim = rotary_dim, .two_tables = two_tables});
        store({{1, 0, 70}, {0, 0, 1}});
        store({{0, 1, 1}, {1, 70, 1}});
      }
    }
  }
}

TEST_P(RopeStore, BringsKeysAndQueriesIntoTheFrameBehindTheRotation) {
  for (const int32_t rotary_dim : {12, 64}) {
    SCOPED_TRACE(rotary_dim);
    make(shape_of({kKvK8V4}, 64, 64), {.rotary_dim = rotary_dim, .framed = true});
    store({{1, 0, 70}, {0, 0, 1}});
    store({{0, 1, 1}, {1, 70, 1}});
  }
}

TEST_P(RopeStore, KeepsTheNewestTokensRotatedOnce) {
  make(shape_of({kKvS50}, 16, 64), {.rotary_dim = 16});
  int32_t stored = 0;
  for (const int32_t count : {30, 50, 1, 60, 64, 1}) {
    store({{1, stored, count}}, 32);
    stored += count;
  }
}

// Rows of a recorded step whose sequences are missing.
TEST_P(RopeStore, StoresNothingForEntriesWithoutTokens) {
  make(shape_of({kKvK8V4}, 16, 64), {.rotary_dim = 16});
  store({{1, 0, 1}, {0, 0, 1}}, 0, 2);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RopeStore);
INSTANTIATE_TEST_SUITE_P(Cuda, RopeStore, testing::ValuesIn(devices_of_this_machine()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace tessera
