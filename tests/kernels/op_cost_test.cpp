#include "kernels/op_cost.h"

#include <gtest/gtest.h>

#include <vector>

namespace tessera {
namespace {

// Shapes are all a cost looks at: the views have no data, but where it tells the tables apart.
template <class T>
MatrixView<T> shape(int64_t rows, int64_t cols) {
  return {nullptr, rows, cols, cols};
}

TEST(OpCost, EmbedReadsTheTokensRowsInTheTablesFormat) {
  const std::vector<int32_t> tokens{3, 0, 3};
  float element = 0;
  EmbedArgs args{.tokens = tokens,
                 .table = shape<const bf16>(10, 8),
                 .table_f32 = {},
                 .out = shape<float>(3, 8)};
  EXPECT_EQ(op_cost(args), (OpCost{3 * 4 + 3 * 8 * 2, 3 * 8 * 4, 0}));
  args.table_f32 = {&element, 10, 8, 8};
  EXPECT_EQ(op_cost(args), (OpCost{3 * 4 + 3 * 8 * 4, 3 * 8 * 4, 0}));
}

TEST(OpCost, RmsNormReadsItsWeightOnce) {
  const std::vector<float> weight(8);
  EXPECT_EQ(op_cost(RmsNormArgs{
                .in = shape<const float>(5, 8), .weight = weight, .out = shape<float>(5, 8)}),
            (OpCost{(5 * 8 + 8) * 4, 5 * 8 * 4, 4 * 5 * 8}));
}

TEST(OpCost, LinearReadsWeightsInTheirFormat) {
  const struct {
    WeightFormat format;
    int64_t bytes;
  } cases[] = {{WeightFormat::f32, 6 * 40 * 4},
               {WeightFormat::bf16, 6 * 40 * 2},
               {WeightFormat::int8, 6 * 40 + 6 * 4},
               {WeightFormat::int4, 6 * 2 * (16 + 2)}};  // two groups of 32 inputs, one partly used
  for (const auto& [format, bytes] : cases) {
    SCOPED_TRACE(name(format));
    EXPECT_EQ(weight_bytes(format, 6, 40), bytes);
    const PackedWeight weight{format, 6, 40, nullptr};
    const OpCost cost = op_cost(LinearArgs{.in = shape<const float>(3, 40),
                                           .weight = &weight,
                                           .bias = {},
                                           .out = shape<float>(3, 6),
                                           .scratch = {}});
    EXPECT_EQ(cost, (OpCost{3 * 40 * 4 + bytes, 3 * 6 * 4, 2 * 3 * 6 * 40}));
  }
}

TEST(OpCost, LinearReadsWhatItAddsTo) {
  const std::vector<float> bias(6);
  const PackedWeight weight{WeightFormat::f32, 6, 4, nullptr};
  const OpCost cost = op_cost(LinearArgs{.in = shape<const float>(3, 4),
                                         .weight = &weight,
                                         .bias = bias,
                                         .accumulate = true,
                                         .out = shape<float>(3, 6),
                                         .scratch = {}});
  EXPECT_EQ(cost.read_bytes, (3 * 4 + 6 * 4 + 6 + 3 * 6) * 4);
  EXPECT_EQ(cost.written_bytes, 3 * 6 * 4);
}

TEST(OpCost, RopeReadsAnglesOfEachRow) {
  const std::vector<int32_t> positions(2);
  EXPECT_EQ(
      op_cost(RopeArgs{.heads = shape<float>(2, 3 * 8), .positions = positions, .head_dim = 8}),
      (OpCost{(2 * 24 + 2 * 2 * 4) * 4 + 2 * 4, 2 * 24 * 4, 3 * 2 * 24}));
}

TEST(OpCost, SiluMulReadsTwiceWhatItWrites) {
  EXPECT_EQ(op_cost(SiluMulArgs{.gate_up = shape<const float>(2, 20), .out = shape<float>(2, 10)}),
            (OpCost{2 * 20 * 4, 2 * 10 * 4, 4 * 2 * 10}));
}

TEST(OpCost, KvResizeCountsPagesOfEveryLayerAndHeadThatMove) {
  const std::vector<KvRowResize> changes{{0, 2, 5}, {1, 4, 3}, {2, 7, 7}};
  KvPool pool;
  pool.layers = 3;
  pool.kv_heads = 2;
  const int64_t rows = 3 * 2;
  const OpCost cost = op_cost(KvResizeArgs{pool, changes});
  EXPECT_EQ(cost, (OpCost{rows * (3 + 2 * 1) * 4, rows * 3 * (3 + 1) * 4, 0}));
}

KvPagesView pages_of(KvFormat format) {
  KvPagesView pages;
  pages.layout = KvPageLayout::make(format, 64, 16);
  pages.kv_heads = 2;
  return pages;
}

TEST(OpCost, KvForkCopiesOnlyTokensThatDoNotFillAPage) {
  KvForkArgs args{.pool = {}, .pages = pages_of(kKvF16), .forks = {}};
  args.pool.layers = 3;
  args.pool.kv_heads = 2;
  const int64_t rows = 3 * 2;
  const std::vector<KvRowFork> whole{{0, 1, 32}};  // two pages of 16 tokens
  args.forks = whole;
  EXPECT_EQ(op_cost(args), (OpCost{rows * 4 * 4, rows * 4 * 4, 0}));
  const std::vector<KvRowFork> partly{{0, 1, 37}};
  args.forks = partly;
  const int64_t tokens = 5 * 64 * 2 * 2;
  EXPECT_EQ(op_cost(args), (OpCost{rows * (5 * 4 + tokens), rows * (7 * 4 + tokens), 0}));
}

TEST(OpCost, KvStoreWritesInThePagesFormat) {
  const std::vector<SequenceSpan> spans{{0, 0, 1, 99}, {1, 1, 3, 0}};
  KvStoreArgs args{.keys = shape<const float>(4, 128),
                   .values = shape<const float>(4, 128),
                   .sequences = spans,
                   .pages = pages_of(kKvF16)};
  EXPECT_EQ(op_cost(args), (OpCost{4 * 2 * 128 * 4, 4 * 2 * 128 * 2, 0}));
  args.pages = pages_of(kKvF32);
  EXPECT_EQ(op_cost(args), (OpCost{4 * 2 * 128 * 4, 4 * 2 * 128 * 4, 0}));
}

TEST(OpCost, AttentionReadsWhatItsQueriesSee) {
  const std::vector<SequenceSpan> spans{{0, 0, 1, 99}, {1, 1, 3, 0}};
  AttentionArgs args;
  args.sequences = spans;
  args.query_heads = 8;
  args.pages = pages_of(kKvF16);
  const int64_t rows = 4 * 8 * 64 * 4;
  EXPECT_EQ(op_cost(args),
            (OpCost{(100 + 3) * 2 * 64 * 2 * 2 + rows, rows, 4 * (100 + 1 + 2 + 3) * 8 * 64}));
  args.window = 2;
  EXPECT_EQ(op_cost(args),
            (OpCost{(2 + 3) * 2 * 64 * 2 * 2 + rows, rows, 4 * (2 + 1 + 2 + 2) * 8 * 64}));
}

}  // namespace
}  // namespace tessera
