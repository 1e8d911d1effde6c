#include "bench/op_cost.h"

#include <gtest/gtest.h>

#include <vector>

namespace tessera {
namespace {

// A cost depends on shapes only, so views have no data, except to tell the two tables apart.
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
  EXPECT_EQ(op_cost(RmsNormArgs{
                .in = shape<const float>(5, 24), .weight = weight, .out = shape<float>(5, 24)}),
            (OpCost{(5 * 24 + 8) * 4, 5 * 24 * 4, 4 * 5 * 24}));  // three heads of 8
  EXPECT_EQ(op_cost(RmsNormArgs{.in = shape<const float>(5, 8),
                                .weight = weight,
                                .accumulate = true,
                                .out = shape<float>(5, 8)}),
            (OpCost{(2 * 5 * 8 + 8) * 4, 5 * 8 * 4, 4 * 5 * 8}));
}

TEST(OpCost, LinearReadsWeightsInTheirFormat) {
  const struct {
    WeightFormat format;
    int64_t bytes;
  } cases[] = {{WeightFormat::f32, 6 * 40 * 4},
               {WeightFormat::bf16, 6 * 40 * 2},
               {WeightFormat::f16, 6 * 40 * 2},
               {WeightFormat::int8, 6 * 2 * (32 + 2)},
               {WeightFormat::fp8, 6 * 40 + 6 * 4},
               {WeightFormat::int4, 6 * 2 * (16 + 4)}};  // two blocks of 32 inputs, one partly used
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

// fp8 has a scale for each token.
TEST(OpCost, RowsForAProductHaveTheBytesOfItsFormat) {
  const std::vector<float> weight(8);
  const struct {
    WeightFormat format;
    int64_t bytes;
  } cases[] = {{WeightFormat::bf16, 5 * 8 * 2}, {WeightFormat::fp8, 5 * 8 + 5 * 4}};
  for (const auto& [format, bytes] : cases) {
    const RoundedRows rounded{format, {}};
    EXPECT_EQ(op_cost(RmsNormArgs{
                  .in = shape<const float>(5, 8), .weight = weight, .out = {}, .rounded = rounded}),
              (OpCost{(5 * 8 + 8) * 4, bytes, 4 * 5 * 8}));
    EXPECT_EQ(
        op_cost(SiluMulArgs{.gate_up = shape<const float>(5, 16), .out = {}, .rounded = rounded}),
        (OpCost{5 * 16 * 4, bytes, 4 * 5 * 8}));
    const PackedWeight packed{format, 6, 8, nullptr};
    EXPECT_EQ(op_cost(LinearArgs{.in = shape<const float>(5, 8),
                                 .weight = &packed,
                                 .bias = {},
                                 .out = shape<float>(5, 6),
                                 .scratch = {},
                                 .rounded = true}),
              (OpCost{bytes + weight_bytes(format, 6, 8), 5 * 6 * 4, 2 * 5 * 6 * 8}));
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

TEST(OpCost, LowRankReadsTheMatricesOfEachAdapterAndWhatItAddsTo) {
  LowRankProduct product;
  product.down = {LowRankSide::narrows, WeightFormat::bf16, 2, 8, nullptr};
  product.add({.up = {LowRankSide::widens, WeightFormat::bf16, 6, 2, nullptr}});
  const LowRankRows rows[] = {{&product, 0, 3, 0}, {&product, 4, 1, 3}};
  const int64_t matrices = 2 * (2 * 8 + 6 * 2);
  EXPECT_EQ(op_cost(LowRankArgs{.in = shape<const float>(5, 8),
                                .rows = rows,
                                .low = shape<float>(4, 2),
                                .out = shape<float>(5, 6)}),
            (OpCost{2 * matrices + 4 * (8 + 6) * 4, 4 * 6 * 4, 2 * 4 * (2 * 8 + 6 * 2)}));
}

TEST(OpCost, RopeReadsAnglesOfEachRow) {
  const std::vector<int32_t> positions(2);
  EXPECT_EQ(
      op_cost(RopeArgs{
          .heads = shape<float>(2, 3 * 8), .positions = positions, .head_dim = 8, .rotary_dim = 8}),
      (OpCost{(2 * 24 + 2 * 2 * 4) * 4 + 2 * 4, 2 * 24 * 4, 3 * 2 * 24}));
}

TEST(OpCost, ExpertLinearReadsTheExpertsThatHaveRows) {
  const std::vector<int32_t> offsets = {0, 2, 2, 3};
  std::vector<StackedWeight> weights(3);
  for (StackedWeight& weight : weights) weight.add({WeightFormat::f32, 6, 4, nullptr});
  EXPECT_EQ(op_cost(ExpertLinearArgs{.in = shape<const float>(3, 4),
                                     .offsets = offsets,
                                     .weights = weights,
                                     .out = shape<float>(3, 6),
                                     .scratch = {}}),
            (OpCost{2 * 6 * 4 * 4 + 3 * 4 * 4, 3 * 6 * 4, 2 * 3 * 6 * 4}));
}

TEST(OpCost, RouteAndCombineCountChoices) {
  std::vector<int32_t> offsets(9);
  EXPECT_EQ(
      op_cost(RouteArgs{.logits = shape<const float>(5, 8),
                        .chosen = 2,
                        .rows = {.offsets = offsets, .tokens = {}, .places = {}, .weights = {}}}),
      (OpCost{5 * 8 * 4, 5 * 2 * 12 + 9 * 4, 2 * 5 * 8 + 10}));
  EXPECT_EQ(op_cost(CombineArgs{.in = shape<const float>(10, 4),
                                .places = {},
                                .weights = {},
                                .chosen = 2,
                                .out = shape<float>(5, 4)}),
            (OpCost{10 * (4 * 4 + 8), 5 * 4 * 4, 2 * 10 * 4}));
  EXPECT_EQ(op_cost(CombineArgs{.in = shape<const float>(10, 4),
                                .places = {},
                                .weights = {},
                                .chosen = 2,
                                .shared = shape<const float>(5, 4),
                                .shared_gates = shape<const float>(5, 1),
                                .out = shape<float>(5, 4)}),
            (OpCost{10 * (4 * 4 + 8) + 5 * 5 * 4, 5 * 4 * 4, 2 * 15 * 4 + 3 * 5}));
}

TEST(OpCost, DeltaRuleReadsAndWritesEachStateOnce) {
  const std::vector<StateSpan> sequences{{.slot = 3, .first_row = 0, .count = 4},
                                         {.slot = 1, .first_row = 4, .count = 1}};
  EXPECT_EQ(
      op_cost(DeltaRuleArgs{.queries = shape<const float>(5, 2 * 8),
                            .keys = shape<const float>(5, 2 * 8),
                            .values = shape<const float>(5, 4 * 12),
                            .decays = shape<const float>(5, 4),
                            .rates = shape<const float>(5, 4),
                            .sequences = sequences,
                            .states = shape<float>(6, 4 * 8 * 12),
                            .value_heads = 4,
                            .key_dim = 8,
                            .out = shape<float>(5, 4 * 12)}),
      (OpCost{2 * 384 * 4 + 5 * (16 + 16 + 48 + 8) * 4, 2 * 384 * 4 + 5 * 48 * 4, 5 * 384 * 7}));
}

TEST(OpCost, SiluMulReadsTwiceWhatItWrites) {
  EXPECT_EQ(op_cost(SiluMulArgs{.gate_up = shape<const float>(2, 20), .out = shape<float>(2, 10)}),
            (OpCost{2 * 20 * 4, 2 * 10 * 4, 4 * 2 * 10}));
}

// Tables and counts of 4 slots with 3 layers of 2 KV heads; 16 tokens a page.
struct Rows {
  static constexpr int32_t kRows = 3 * 2;

  explicit Rows(KvFormat format, int32_t high, int32_t low = 0)
      : rows(4 * kRows, KvRow{high, low}), tables(4 * kRows * 8, kNoPage) {
    pages.tables = tables.data();
    pages.rows = rows.data();
    pages.layouts[0] = KvPageLayout::make(format, 64, 16);
    pages.layouts[1] = KvPageLayout::make(kKvK8V4, 64, 16);
    pages.residual_layout = KvPageLayout::make(format == kKvF32 ? kKvF32 : kKvF16, 64, 64);
    pages.layers = 3;
    pages.kv_heads = 2;
    pages.row_pages = 8;
    pages.head_dim = 64;
  }

  std::vector<KvRow> rows;
  std::vector<int32_t> tables;
  KvPagesView pages;
};

TEST(OpCost, KvResizeCountsPagesOfEveryLayerAndHeadThatMove) {
  Rows rows(kKvF16, 40);
  for (size_t i = 0; i < 12; ++i) {
    rows.tables[i] = 5;  // of slot 0
  }
  KvPool pool;
  pool.pages = rows.pages;
  const std::vector<int32_t> released{0};
  // to 80 tokens; to 48, no further page
  const std::vector<KvGrowth> grown{{1, {}, 40}, {2, {}, 8}};
  const int64_t given = Rows::kRows * 2;
  EXPECT_EQ(op_cost(KvResizeArgs{pool, released, grown}),
            (OpCost{(given + 2 * 12) * 4, 3 * (given + 12) * 4, 0}));
}

TEST(OpCost, KvForkCopiesResidualBuffersAndTokensThatDoNotFillAPage) {
  const Rows rows(kKvF16, 37);
  KvForkArgs args;
  args.pool.pages = rows.pages;
  const int64_t residual = 64 * 64 * 2 * 2;
  const std::vector<KvFork> whole{{0, 1, {}, 32}};  // two pages of 16 tokens
  args.forks = whole;
  EXPECT_EQ(op_cost(args),
            (OpCost{Rows::kRows * (4 * 4 + residual), Rows::kRows * (4 * 4 + residual), 0}));
  const std::vector<KvFork> partly{{0, 1, {}}};
  args.forks = partly;
  const int64_t tokens = 5 * 64 * 2 * 2;
  EXPECT_EQ(op_cost(args), (OpCost{Rows::kRows * (5 * 4 + tokens + residual),
                                   Rows::kRows * (7 * 4 + tokens + residual), 0}));
}

TEST(OpCost, KvStoreWritesDenseTokensAndTheGroupsThatClose) {
  const Rows rows(kKvF16, 0);
  KvStoreArgs args{.keys = shape<const float>(31, 128),
                   .values = shape<const float>(31, 128),
                   .sequences = {},
                   .pages = rows.pages,
                   .dense = {}};
  const std::vector<SequenceSpan> open{{0, 0, 1, 99, {}}, {1, 1, 30, 0, {}}};
  args.sequences = open;
  EXPECT_EQ(op_cost(args), (OpCost{31 * 2 * 128 * 4, 31 * 2 * 128 * 2, 0}));
  const std::vector<SequenceSpan> closing{{0, 0, 1, 99, {}}, {1, 1, 30, 40, {1, 1}}};
  args.sequences = closing;
  EXPECT_EQ(op_cost(args), (OpCost{31 * 2 * 128 * 4 + 40 * 2 * 128 * 2,
                                   31 * 2 * 128 * 2 + 64 * 2 * (64 + 32 + 8), 0}));
}

TEST(OpCost, CountsTheRotationOfQueriesInKvStoreWithRope) {
  const Rows rows(kKvF16, 0);
  const std::vector<SequenceSpan> spans{{0, 0, 3, 10, {}}};
  const std::vector<int32_t> positions{10, 11, 12};
  const float table[1] = {};
  const float other[1] = {};
  KvStoreArgs args{.keys = shape<const float>(3, 128),
                   .values = shape<const float>(3, 128),
                   .sequences = spans,
                   .pages = rows.pages,
                   .dense = {}};
  const OpCost apart = op_cost(args);
  args.rope = {.rotary_dim = 48,
               .positions = positions,
               .queries = shape<float>(3, 256),
               .query_table = {table, table},
               .key_table = {table, table}};
  const int64_t angles = 3 * 48 * 4;
  const int64_t queries = 3 * 4 * 48 * 4;
  EXPECT_EQ(op_cost(args),
            apart + (OpCost{queries + angles + 3 * 4, queries, 3 * 3 * (4 + 2) * 48}));
  args.rope.key_table = {other, other};
  EXPECT_EQ(op_cost(args),
            apart + (OpCost{queries + 2 * angles + 3 * 4, queries, 3 * 3 * (4 + 2) * 48}));
}

TEST(OpCost, APlanReadsTheCountsOfEachRowOfEachLayer) {
  KvPagesView pages;
  pages.layers = 3;
  pages.kv_heads = 2;
  const std::vector<SequenceSpan> spans(5);
  const int64_t rows = 5 * 2 * 3;
  EXPECT_EQ(op_cost(PlanAttentionArgs{.sequences = spans, .pages = pages, .plan = {}}),
            (OpCost{rows * int64_t{sizeof(KvRow)}, rows * 4, 0}));
}

TEST(OpCost, AttentionReadsWhatItsQueriesSee) {
  Rows rows(kKvF16, 0);
  rows.rows[0] = {64, 0};
  rows.rows[1] = {10, 30};
  const std::vector<SequenceSpan> spans{{0, 0, 1, 99, {0, 1}}, {1, 1, 3, 0, {0, 1}}};
  AttentionArgs args;
  args.sequences = spans;
  args.query_heads = 8;
  args.pages = rows.pages;
  const int64_t queries = 4 * 8 * 64 * 4;
  // 36 tokens of the first sequence are dense, and 3 of the other.
  EXPECT_EQ(op_cost(args), (OpCost{(2 * (36 + 3) + 64 + 10) * 64 * 4 + 30 * (64 + 32 + 8) + queries,
                                   queries, 4 * (100 + 76 + 2 * (1 + 2 + 3)) * 4 * 64}));
  rows.rows[1] = {64, 0};
  args.sliding_window = 2;
  EXPECT_EQ(op_cost(args),
            (OpCost{2 * (2 + 3) * 64 * 4 + queries, queries, 4 * 2 * (2 + 1 + 2 + 2) * 4 * 64}));
}

TEST(OpCost, AttentionReadsTheGroupsOfItsStepDense) {
  const Rows rows(kKvK8V4, 128);  // as the step leaves them
  const std::vector<SequenceSpan> spans{{0, 0, 120, 20, {}}};
  AttentionArgs args;
  args.sequences = spans;
  args.query_heads = 2;
  args.pages = rows.pages;
  const int64_t queries = 120 * 2 * 64 * 4;
  EXPECT_EQ(op_cost(args).read_bytes, 2 * 140 * 64 * 4 + queries);
  EXPECT_EQ(op_cost(args).flops, 4 * 2 * (140 * 141 / 2 - 20 * 21 / 2) * 64);
}

constexpr int64_t kF16Token = 64 * 2 * 2;
constexpr int64_t kK8V4Token = 64 + 32 + 8;

TEST(OpCost, ASnapshotHasTheTokensOfASlotAndTheirScores) {
  Rows rows(kKvF16, 48, 16);
  KvSnapshotArgs args;
  args.pool.pages = rows.pages;
  args.snapshot = {1, {0, 1}, 67};  // 3 in the open group
  const int64_t row = 8 + (48 + 3) * kF16Token + 16 * kK8V4Token;
  EXPECT_EQ(op_cost(args), (OpCost{Rows::kRows * row, Rows::kRows * row, 0}));
  KvTokenScore token_score;
  args.pool.pages.token_scores = &token_score;
  EXPECT_EQ(op_cost(args).read_bytes, Rows::kRows * (row + 8 * (48 + 16 + 3)));
}

// Prefix blocks of 64 tokens: 4 pages of either layout.
KvPool pool_with_prefix_blocks(const Rows& rows, std::vector<int32_t>& tables) {
  KvPool pool;
  pool.pages = rows.pages;
  pool.prefix_block_tables = tables.data();
  pool.prefix_blocks = 2;
  pool.prefix_block_pages = 4;
  pool.prefix_block_tokens = 64;
  return pool;
}

TEST(OpCost, PrefixBlocksCostTheirPagesIdsAndOwners) {
  const Rows rows(kKvF16, 64);
  std::vector<int32_t> tables(2 * Rows::kRows * 4, kNoPage);
  const KvPool pool = pool_with_prefix_blocks(rows, tables);
  const int64_t pages = Rows::kRows * 4;
  const std::vector<KvShare> shares{{0, 0, 0, 0}, {1, 1, 0, 1}};
  EXPECT_EQ(op_cost(KvShareArgs{pool, shares}), (OpCost{2 * pages * 8, 2 * pages * 8, 0}));
  const std::vector<PrefixBlock> prefix_blocks{{0, 0}};
  const std::vector<KvAttachment> attachments{{2, {}, prefix_blocks}};
  KvAttachArgs attach{pool, attachments};
  EXPECT_EQ(op_cost(attach), (OpCost{pages * 8, pages * 8, 0}));
  KvTokenScore token_score;
  attach.pool.pages.token_scores = &token_score;
  EXPECT_EQ(op_cost(attach), (OpCost{pages * 8, pages * 8 + Rows::kRows * 64 * 8, 0}));
  tables[0] = tables[1] = tables[4] = 7;  // of the first prefix block
  const std::vector<int32_t> handles{0, 1};
  EXPECT_EQ(op_cost(KvEvictArgs{pool, handles}), (OpCost{3 * 8, 3 * 12, 0}));
}

TEST(OpCost, KvDemoteReadsOneFormatAndWritesTheOther) {
  Rows rows(kKvF16, 64);
  rows.pages.layouts[1] = KvPageLayout::make(kKvK8V4, 64, 32);  // twice as many tokens a page
  std::vector<int32_t> tables(2 * Rows::kRows * 4, kNoPage);
  const std::vector<PrefixBlock> prefix_blocks{{0, 0}, {1, 0}};
  const KvDemoteArgs args{pool_with_prefix_blocks(rows, tables), prefix_blocks, 1, {}};
  EXPECT_EQ(op_cost(args), (OpCost{2 * Rows::kRows * (64 * kF16Token + 2 * 8),
                                   2 * Rows::kRows * (64 * kK8V4Token + 2 * 12), 0}));
}

TEST(OpCost, KvScoreReadsKeysThatCountingQueriesSee) {
  Rows rows(kKvF16, 0);
  rows.rows[0] = {64, 0};
  rows.rows[1] = {10, 30};
  const std::vector<SequenceSpan> spans{{0, 0, 3, 97, {0, 1}}};
  std::vector<KvScoring> scorings(1);
  KvScoreArgs args;
  args.sequences = spans;
  args.scorings = scorings;
  args.pages = rows.pages;
  args.query_heads = 8;
  EXPECT_EQ(op_cost(args), OpCost{});  // no policy needs token scores
  scorings[0] = {.token_scores = true, .scorer = KvScorer::mean, .begin = 200, .end = 300};
  EXPECT_EQ(op_cost(args), (OpCost{0, 2 * 3 * 8, 0}));
  scorings[0].begin = 98;  // two of the three queries; 36 tokens are dense, 33 of them older
  const int64_t older = 64 + 33 + 10 + 30 + 33;
  EXPECT_EQ(op_cost(args),
            (OpCost{2 * 8 * 65 * 4 + (64 + 10 + 2 * 36) * 64 * 2 + 30 * (64 + 4) + older * 4,
                    2 * 3 * 8 + older * 4, 2 * (99 + 100 + 75 + 76) * 4 * 64}));
}

TEST(OpCost, KvScoreReadsTheWeightsThatAttentionWroteInPlaceOfKeys) {
  const Rows rows(kKvK8V4, 64);
  const std::vector<SequenceSpan> spans{{0, 0, 1, 97, {}}};
  const std::vector<KvScoring> scorings{{true, KvScorer::mean, 90, 140}};
  KvScoreArgs args;
  args.sequences = spans;
  args.scorings = scorings;
  args.pages = rows.pages;
  args.query_heads = 8;
  args.weights = {nullptr, 2, 512, 512};
  EXPECT_EQ(op_cost(args), (OpCost{8 * 4 + 2 * (98 * 4 * 4 + 97 * 4), 2 * (8 + 97 * 4), 0}));
  AttentionArgs attention;
  attention.sequences = spans;
  attention.pages = rows.pages;
  attention.query_heads = 8;
  const OpCost unscored = op_cost(attention);
  attention.scorings = scorings;
  attention.weights = {nullptr, 2, 512, 512};
  EXPECT_EQ(op_cost(attention).written_bytes, unscored.written_bytes + 2 * 98 * 4 * 4);
}

TEST(OpCost, KvScoreReadsTheGroupsOfItsStepDenseOrClosed) {
  const Rows rows(kKvK8V4, 128);  // as the step leaves them
  const std::vector<SequenceSpan> spans{{0, 0, 120, 20, {}}};
  const std::vector<KvScoring> scorings{{true, KvScorer::mean, 70, 140}};
  KvScoreArgs args;
  args.sequences = spans;
  args.scorings = scorings;
  args.pages = rows.pages;
  args.query_heads = 2;
  const int64_t keys = 64 * (64 + 4) + 76 * 64 * 2;
  EXPECT_EQ(op_cost(args), (OpCost{70 * 2 * 65 * 4 + 2 * (keys + 20 * 4), 2 * (120 * 8 + 20 * 4),
                                   2 * 2 * (140 * 141 / 2 - 70 * 71 / 2) * 64}));
}

TEST(OpCost, KvCompressReadsTokenScoresAndMovesDemotedTokens) {
  const Rows rows(kKvF16, 32, 16);  // as the op leaves them
  const std::vector<KvCompression> sequences{
      {.slot = 1, .tiers = {0, 1}, .policy = {}, .tokens = 5 * 64 + 3}};
  std::vector<KvCompressed> results{{.pages_freed = 5, .demoted = 20, .dropped = 9}};
  const KvCompressArgs args{{.pages = rows.pages}, sequences, results, {}};
  const int64_t token_scores = Rows::kRows * (32 + 16 + 3) + 9;
  const int64_t read = Rows::kRows * 8 + token_scores * 8 + 20 * kF16Token;
  const int64_t written = Rows::kRows * 8 + 20 * (kK8V4Token + 8);
  EXPECT_EQ(op_cost(args), (OpCost{read + 5 * 8, written + 5 * 12, 0}));
  results[0].pages_freed = -2;
  EXPECT_EQ(op_cost(args), (OpCost{read, written, 0}));
}

TEST(OpCost, SampleWeighsEachLogitOfARowThatDraws) {
  std::vector<SampleRow> rows{{.temperature = 0}, {.row = 4, .changes = 2}};
  const std::vector<LogitChange> changes(2);
  SampleArgs args{.logits = shape<float>(9, 100),
                  .rows = rows,
                  .changes = changes,
                  .masks = {},
                  .sampled = {},
                  .scratch = {}};
  const int64_t read = 2 * 100 * 4 + 2 * int64_t{sizeof(SampleRow)} + 2 * 20;
  EXPECT_EQ(op_cost(args), (OpCost{read, 2 * 24, 100 + 500}));
  rows[0].wants_logprob = true;
  rows[1].forced = 7;
  EXPECT_EQ(op_cost(args), (OpCost{read, 2 * 24, 500 + 100}));
}

}  // namespace
}  // namespace tessera
