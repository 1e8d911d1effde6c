#include <gtest/gtest.h>

#include <set>
#include <string>

#include "kernels/cpu/attention/attention_plan.h"
#include "kernels/cpu/attention/shared_runs.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "tests/kernels/isas.h"
#include "tests/kernels/shared_sequences.h"

namespace tessera {
namespace {

class SharedAttention : public testing::TestWithParam<CpuIsa> {
 protected:
  // Returns: bits of the results with this number of threads.
  static SharedSequences::Bits attend(SharedSequences& sequences, int threads, bool shared,
                                      bool scored) {
    ThreadPool pool(threads);
    const Device device{"cpu", &cpu_backend(GetParam()), pool.stream()};
    return sequences.attend(device, {.shared = shared, .scored = scored});
  }
};

TEST_P(SharedAttention, HasTheBitsOfEverySequenceReadingForItself) {
  uint32_t seed = 1;
  for (const KvFormat format : {kKvF32, kKvF16, kKvFp8, kKvK8V8, kKvK8V4, kKvK4V4, kKvK4V2, kKvK4V1,
                                kKvK4V2R, kKvK3V3R, kKvK6V4R, kKvS50, kKvS70K4V4}) {
    for (SharedShape shape :
         {SharedShape{.gqa_ratio = 2},
          SharedShape{.head_dim = 24, .kv_heads = 3, .gqa_ratio = 7, .page_tokens = 64},
          SharedShape{.kv_heads = 1, .gqa_ratio = 1, .page_tokens = 48},
          SharedShape{.head_dim = 8, .kv_heads = 1, .gqa_ratio = 24, .page_tokens = 32}}) {
      shape.high = format;
      for (int round = 0; round < 3; ++round, ++seed) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        std::mt19937 random(seed);
        // The scalar backend is slow and shares nothing, so it gets fewer tokens.
        const int32_t tokens = GetParam() == CpuIsa::scalar ? 130 : round == 0 ? 2200 : 700;
        SharedSequences sequences(shape, random_branches(random, capacity_of(shape), tokens), seed);
        const auto alone = attend(sequences, 1, false, true);
        for (const int threads : {1, 3}) {
          ASSERT_EQ(alone, attend(sequences, threads, true, true)) << threads << " threads";
        }
      }
    }
  }
}

TEST_P(SharedAttention, HasTheBitsOfEverySequenceReadingForItselfWithASlidingWindow) {
  for (const int32_t sliding_window : {100, 1100, 4096}) {
    SharedSequences sequences(
        {.low = kKvF16, .sliding_window = sliding_window},
        {{0, 0, {1280, 0}}, {0, 40, {64, 0}}, {0, 80, {128, 0}}, {2, 80, {0, 0}}}, 7);
    ASSERT_EQ(attend(sequences, 1, false, false), attend(sequences, 2, true, false))
        << "window " << sliding_window;
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, SharedAttention, testing::ValuesIn(isas_of_attention()),
                         [](const auto& instance) { return std::string(name(instance.param)); });

// ---- runs and items of a plan

class Planned {
 public:
  Planned(SharedSequences& sequences, int32_t threads, bool share_reads = true)
      : args_(with(sequences.args(), share_reads)),
        scratch_(static_cast<size_t>(
            AttentionPlan::scratch_bytes(std::ssize(args_.sequences) * args_.pages.kv_heads))),
        selection_(args_, nullptr),
        plan(args_, selection_, scratch_.data()),
        runs_scratch_(static_cast<size_t>(SharedRuns::scratch_bytes(
            std::ssize(args_.sequences), args_.pages.kv_heads, plan.splits()))),
        runs(args_, plan.splits(), threads, runs_scratch_.data()) {
    plan.cut_items(runs, threads);
  }

 private:
  static AttentionArgs with(AttentionArgs args, bool share_reads) {
    args.share_reads = share_reads;
    return args;
  }

  AttentionArgs args_;
  std::vector<std::byte> scratch_;
  TileSelection selection_;

 public:
  AttentionPlan plan;

 private:
  std::vector<std::byte> runs_scratch_;

 public:
  SharedRuns runs;
};

// 32 sequences with 2048 tokens in common and 64 of their own.
std::vector<Branch> branches_of_one_prefix() {
  std::vector<Branch> branches{{0, 0, {2048 + 64, 0}}};
  for (int i = 1; i < 32; ++i) {
    branches.push_back({0, 2048 / 16, {64, 0}});
  }
  return branches;
}

TEST(SharedRuns, OneItemReadsAPrefixForAsManySequencesAsABlockHasPairsFor) {
  SharedSequences sequences({.gqa_ratio = 4}, branches_of_one_prefix(), 3);
  const Planned found(sequences, 1);
  // 16 sequences of 4 query heads make 64 pairs: 2 items for each KV head and split of 16 tiles.
  EXPECT_EQ(found.runs.count(), 2 * 2 * 2);
  for (int64_t row = 0; row < 64; ++row) {
    EXPECT_EQ(found.runs.tiles(row, 0), 16);
    EXPECT_EQ(found.runs.tiles(row, 1), 16);
    EXPECT_EQ(found.runs.tiles(row, 2), 0);
  }
  // Work for threads that the KV heads alone would leave idle: 4 sequences, 16 pairs.
  EXPECT_EQ((Planned{sequences, 16}.runs.count()), 2 * 2 * 8);
}

TEST(SharedRuns, SequencesWithNothingInCommonHaveNone) {
  SharedSequences sequences({}, {{0, 0, {640, 0}}, {0, 0, {640, 0}}, {0, 3, {640, 0}}}, 4);
  EXPECT_EQ((Planned{sequences, 1}.runs.count()), 0);  // 3 pages of 16 are less than a tile
}

TEST(SharedRuns, AShortPrefixOfAllDoesNotHideALongOneOfSome) {
  // 64 tokens are common to all sequences; 704 to the first two, and another 704 to the last two.
  SharedSequences sequences(
      {.kv_heads = 1}, {{0, 0, {704, 0}}, {0, 44, {64, 0}}, {0, 4, {640, 0}}, {2, 44, {64, 0}}}, 5);
  const Planned found(sequences, 1);
  ASSERT_EQ(found.runs.count(), 2);
  for (int64_t row = 0; row < 4; ++row) {
    EXPECT_EQ(found.runs.tiles(row, 0), 11);
  }
}

TEST(SharedRuns, EveryRunIsOfPagesThatAllOfItsSequencesHave) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    SharedSequences sequences({}, random_branches(random, 16, 1500), seed);
    const Planned found(sequences, 2);
    std::set<std::pair<int64_t, int32_t>> in_a_run;
    for (int64_t i = 0; i < found.runs.count(); ++i) {
      const SharedRun& run = found.runs.run(i);
      ASSERT_GE(run.sequences, 2);
      ASSERT_LE(run.sequences * 2, PairBlock::kPairs);
      ASSERT_LE(run.end_tile, run.first_tile + kSplitTiles);
      const int32_t* first = sequences.pages(found.runs.sequence(run, 0), run.kv_head);
      for (int32_t s = 0; s < run.sequences; ++s) {
        const int32_t sequence = found.runs.sequence(run, s);
        const int64_t row = int64_t{sequence} * 2 + run.kv_head;
        ASSERT_TRUE(in_a_run.insert({row, run.first_tile}).second);
        ASSERT_EQ(found.runs.tiles(row, run.first_tile / kSplitTiles),
                  run.end_tile - run.first_tile);
        const int32_t* pages = sequences.pages(sequence, run.kv_head);
        for (int32_t entry = 0; entry < run.end_tile * kAttentionTile / 16; ++entry) {
          ASSERT_EQ(pages[entry], first[entry]);
        }
      }
    }
  }
}

TEST(AttentionPlan, LeavesOutPagesThatRunsReadWholeAndTakesSeveralShortItemsAtOnce) {
  SharedSequences sequences({.gqa_ratio = 4}, branches_of_one_prefix(), 3);
  const Planned shared(sequences, 1);
  ASSERT_EQ(shared.plan.items(), shared.plan.rows());
  for (int64_t item = 0; item < shared.plan.items(); ++item) {
    EXPECT_EQ(shared.plan.at(item).row, item);
    EXPECT_EQ(shared.plan.at(item).split, 2);
  }
  EXPECT_EQ(shared.plan.items_at_once(), 2);  // 2 tiles of 4 pairs each
  EXPECT_EQ((Planned{sequences, 1, false}.plan.items_at_once()), 1);
  EXPECT_EQ((Planned{sequences, 16}.plan.items_at_once()), 1);  // otherwise threads would idle
}

TEST(AttentionPlan, AStepOfNothingHasNoItems) {
  SharedSequences sequences({}, {{0, 0, {64, 0}}}, 6);
  AttentionArgs args = sequences.args();
  args.sequences = {};
  std::vector<std::byte> scratch(static_cast<size_t>(AttentionPlan::scratch_bytes(0)));
  const TileSelection selection(args, nullptr);
  AttentionPlan plan(args, selection, scratch.data());
  const SharedRuns runs(args, plan.splits(), 2, nullptr);
  plan.cut_items(runs, 2);
  EXPECT_EQ(plan.items(), 0);
  EXPECT_EQ(plan.partials(), 0);
}

TEST(AttentionPlan, EverySplitOfARowIsReadByARunOrByOneItem) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    SharedSequences sequences({}, random_branches(random, 16, 3000), seed);
    const Planned planned(sequences, 2);
    const AttentionPlan& plan = planned.plan;
    std::set<std::pair<int64_t, int32_t>> items;
    for (int64_t item = 0; item < plan.items(); ++item) {
      const AttentionPlan::Place place = plan.at(item);
      ASSERT_LT(place.split, std::max(plan.work(place.row).splits, 1));
      ASSERT_TRUE(items.insert({place.row, place.split}).second);
    }
    for (int64_t row = 0; row < plan.rows(); ++row) {
      const RowWork& work = plan.work(row);
      for (int32_t split = 0; split < std::max(work.splits, 1); ++split) {
        const bool read =
            work.splits > 0 && planned.runs.tiles(row, work.first_split + split) == kSplitTiles;
        ASSERT_TRUE(read || items.count({row, split}) == 1) << "row " << row << " split " << split;
      }
    }
  }
}

}  // namespace
}  // namespace tessera
