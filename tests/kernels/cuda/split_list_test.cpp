// Lists that plan_attention makes. They are read with the kernels' own headers, which the compiler
// of a GPU's tests does not take.

#include "kernels/cuda/attention/split_list.h"

#include <gtest/gtest.h>

#include <set>

#include "kernels/cuda/cuda_backend.h"
#include "tests/kernels/shared_sequences.h"

namespace tessera {
namespace {

class SplitListOfAStep : public testing::TestWithParam<Device> {
 protected:
  static constexpr int32_t kLayer = 1;

  // Plans a step of these sequences, in splits or as the GPU's size and the plan's room have it.
  void plan(SharedSequences& sequences, const SharedShape& shape, bool shares = true,
            bool divide_splits = false) {
    AttentionArgs args = sequences.args();
    args.share_reads = shares;
    const auto count = static_cast<int32_t>(args.sequences.size());
    memory_ = plan_step(GetParam(), {count, count, shape.row_tokens}, args, divide_splits);
    GetParam().wait(GetParam().stream);
    lists_ = cuda::ListShape::of(args.sequences, args.pages, args.query_heads, std::ssize(memory_))
                 .in(memory_, args.pages.layers);
  }
  int32_t own() const { return lists_.counts[kLayer].own; }
  int32_t shared() const { return lists_.counts[kLayer].shared; }
  int32_t slices() const { return lists_.counts[kLayer].slices; }
  const cuda::SplitItem& own(int32_t i) const { return *lists_.own(kLayer, i); }
  const cuda::SplitItem& shared(int32_t i) const { return *lists_.shared(kLayer, i); }

 private:
  std::vector<std::byte> memory_;
  cuda::SplitLists lists_{};
};

// 8 sequences with 1,024 tokens in common, two splits, and 64 of their own.
std::vector<Branch> eight_of_one_prefix() {
  std::vector<Branch> branches{{0, 0, {1024 + 64, 0}}};
  for (int i = 1; i < 8; ++i) {
    branches.push_back({0, 1024 / 16, {64, 0}});
  }
  return branches;
}

TEST_P(SplitListOfAStep, HasOneItemForAsManySequencesAsAWarpHasPairsFor) {
  for (const auto& [gqa_ratio, items] : {std::pair{1, 1}, std::pair{2, 2}, std::pair{4, 4}}) {
    const SharedShape shape{.gqa_ratio = gqa_ratio};
    SharedSequences sequences(shape, eight_of_one_prefix(), 3);
    plan(sequences, shape);
    EXPECT_EQ(shared(), 2 * 2 * items) << "gqa_ratio " << gqa_ratio;  // splits, KV heads
    EXPECT_EQ(own(), 2 * 8);
    plan(sequences, shape, false);
    EXPECT_EQ(shared(), 0);
    EXPECT_EQ(own(), 2 * 8 * 3);
  }
}

TEST_P(SplitListOfAStep, SharesNothingWhereOneSequenceFillsAWarp) {
  const SharedShape shape{.gqa_ratio = 5};
  SharedSequences sequences(shape, eight_of_one_prefix(), 3);
  plan(sequences, shape);
  EXPECT_EQ(shared(), 0);
  EXPECT_EQ(own(), 2 * 8 * 3);
}

TEST_P(SplitListOfAStep, HasEverySplitOfEveryRowOnceAndSharesEqualPagesAlone) {
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const SharedShape shape{.gqa_ratio = seed % 2 == 0 ? 1 : 4};
    SharedSequences sequences(shape, random_branches(random, capacity_of(shape), 2500), seed);
    plan(sequences, shape);
    std::set<std::tuple<int32_t, int32_t, int32_t>> listed;  // sequence, KV head, first slice
    for (int32_t i = 0; i < own(); ++i) {
      ASSERT_EQ(own(i).count, 1);
      ASSERT_EQ(own(i).first_slice % cuda::kSlicesOfSplit, 0);
      ASSERT_TRUE(listed.insert({own(i).queries[0], own(i).kv_head, own(i).first_slice}).second);
    }
    for (int32_t i = 0; i < shared(); ++i) {
      const cuda::SplitItem& item = shared(i);
      ASSERT_GE(item.count, 2);
      ASSERT_LE(item.count, cuda::queries_of_item(shape.gqa_ratio));
      for (int32_t s = 0; s < item.count; ++s) {
        ASSERT_TRUE(listed.insert({item.queries[s], item.kv_head, item.first_slice}).second);
        const int32_t end =
            (item.first_slice / cuda::kSlicesOfSplit + 1) * cuda::kMinSplitTiles * kKvGroup;
        for (int32_t page = 0; page < end / sequences.capacity(); ++page) {
          ASSERT_EQ(sequences.pages(item.queries[s], item.kv_head)[page],
                    sequences.pages(item.queries[0], item.kv_head)[page]);
        }
      }
    }
    size_t splits = 0;
    const AttentionArgs args = sequences.args();
    for (const SequenceSpan& span : args.sequences) {
      for (int32_t head = 0; head < shape.kv_heads; ++head) {
        const KvRow& row = args.pages.rows[args.pages.row_index(span.slot, kLayer, head)];
        splits += static_cast<size_t>(cuda::split_count(
            static_cast<int32_t>(div_ceil(row.high, kKvGroup) + div_ceil(row.low, kKvGroup) + 1)));
      }
    }
    EXPECT_EQ(listed.size(), splits);
  }
}

// Each sequence has 1,088 tokens and a token's own group: 18 tiles, nine slices.
TEST_P(SplitListOfAStep, HasEverySliceOnceWhereSplitsAreFew) {
  const SharedShape shape{.gqa_ratio = 1};
  SharedSequences sequences(shape, eight_of_one_prefix(), 3);
  plan(sequences, shape, true, true);
  EXPECT_EQ(slices(), 1);
  EXPECT_EQ(shared(), 0);
  std::set<std::tuple<int32_t, int32_t, int32_t>> listed;  // sequence, KV head, slice
  for (int32_t i = 0; i < own(); ++i) {
    ASSERT_LT(own(i).first_slice, 9);
    ASSERT_TRUE(listed.insert({own(i).queries[0], own(i).kv_head, own(i).first_slice}).second);
  }
  EXPECT_EQ(listed.size(), 8 * 2 * 9);
}

TEST_P(SplitListOfAStep, HasSplitsWhereTheyFillTheGpuOrSlicesHaveNoRoom) {
  const int32_t few = cuda::kFewSplits * simt::limits(GetParam().stream).multiprocessors;
  const SharedShape shape{.kv_heads = few / (8 * 3) + 1, .gqa_ratio = 1};
  SharedSequences many(shape, eight_of_one_prefix(), 3);
  plan(many, shape, true, true);
  EXPECT_EQ(slices(), cuda::kSlicesOfSplit);
  EXPECT_GT(shared(), 0);

  const SharedShape narrow{.kv_heads = 1, .gqa_ratio = 1, .row_tokens = 1152};
  SharedSequences long_rows(narrow, std::vector<Branch>(17, {0, 0, {1088, 0}}), 3);
  plan(long_rows, narrow, true, true);
  EXPECT_EQ(slices(), cuda::kSlicesOfSplit);
}

TEST(ListShape, ListsSequencesOfFewTokensUnlessContextsAreShortOrBatchesVeryLarge) {
  KvPagesView pages;
  pages.layers = 4;
  pages.kv_heads = 8;
  const auto of = [&](int32_t sequences, int32_t count, int32_t context, int32_t limit) {
    const std::vector<SequenceSpan> spans(static_cast<size_t>(sequences),
                                          {0, 0, count, context, {}});
    const int64_t bytes =
        cuda_backend().attention_plan_bytes({limit, limit, 4096}, pages.layers, pages.kv_heads, 32);
    return cuda::ListShape::of(spans, pages, 32, bytes);
  };
  EXPECT_EQ(of(1, 1, 2000, 1).splits, 5);
  EXPECT_EQ(of(255, 1, 2000, 255).rows(), 255 * 8);
  EXPECT_EQ(of(256, 1, 2000, 256).splits, 0) << "one row too many";
  EXPECT_EQ(of(1, 1, 300, 1).splits, 0) << "one split a row";
  EXPECT_EQ(of(2, 8, 4000, 16).tokens, 8);
  EXPECT_EQ(of(2, 9, 4000, 64).splits, 0) << "prompts";
  EXPECT_EQ(of(3, 8, 4000, 24).tokens, 8);
  EXPECT_EQ(of(3, 8, 4000, 23).splits, 0) << "no room for 24 query tokens";
}

TEST(ListShape, HasRoomForSlicesOfAFewSequences) {
  KvPagesView pages;
  pages.layers = 4;
  pages.kv_heads = 8;
  for (const int32_t limit : {1, 16, 64}) {
    const int64_t bytes =
        cuda_backend().attention_plan_bytes({limit, limit, 4096}, pages.layers, 8, 32);
    for (const int32_t sequences : {1, limit / 4, limit / 4 + 1}) {
      if (sequences == 0 || sequences > limit) {
        continue;
      }
      const std::vector<SequenceSpan> spans(static_cast<size_t>(sequences), {0, 0, 1, 4000, {}});
      EXPECT_EQ(cuda::ListShape::of(spans, pages, 32, bytes).has_room_for_slices(),
                sequences <= std::max(limit, 16) / 4)
          << sequences << " of " << limit;
    }
  }
}

TEST(ListShape, ListsDecodeAloneWhereSequencesOfFewTokensHaveNoRoom) {
  KvPagesView pages;
  pages.layers = 1;
  pages.kv_heads = 8;
  const SequenceSpan spans[] = {{0, 0, 1, 2000, {}},
                                {1, 1, 4, 2000, {}},
                                {2, 5, 4, 2000, {}},
                                {3, 9, 4, 2000, {}},
                                {4, 13, 4, 2000, {}}};
  const auto tokens = [&](int32_t limit) {
    return cuda::ListShape::of(spans, pages, 32,
                               cuda_backend().attention_plan_bytes({32, limit, 2048}, 1, 8, 32))
        .tokens;
  };
  EXPECT_EQ(tokens(20), 4);
  EXPECT_EQ(tokens(19), 1);
}

INSTANTIATE_TEST_SUITE_P(Devices, SplitListOfAStep, testing::ValuesIn(devices_of_this_machine()),
                         [](const auto& instance) { return instance.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SplitListOfAStep);

}  // namespace
}  // namespace tessera
