#include <gtest/gtest.h>

#include <bit>
#include <set>
#include <string>

#include "kernels/cpu/attention/attention_plan.h"
#include "kernels/cpu/attention/shared_runs.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "tests/kernels/isas.h"
#include "tests/kernels/kv_rows.h"

namespace tessera {
namespace {

struct Shape {
  KvFormat high = kKvF16;
  KvFormat low = kKvK4V2;
  int32_t head_dim = 16;
  int32_t kv_heads = 2;
  int32_t gqa_ratio = 2;
  int32_t page_tokens = 16;
  int32_t sliding_window = 0;
  int32_t row_tokens = 4096;
};

// A sequence whose rows begin with the first `pages` pages of the rows of an earlier one.
struct Branch {
  size_t from = 0;
  int32_t pages = 0;
  KvRow own;  // tokens after the shared pages; low tokens are in the low tier
};

// Sequences of one new token each. Their rows have pages in common.
class SharedSequences {
 public:
  SharedSequences(const Shape& shape, const std::vector<Branch>& branches, uint32_t seed)
      : shape_(shape),
        random_(seed),
        rows_({.formats = {shape.high, shape.low},
               .head_dim = shape.head_dim,
               .page_tokens = shape.page_tokens,
               .slots = static_cast<int32_t>(branches.size()),
               .layers = 2,
               .kv_heads = shape.kv_heads,
               .row_tokens = shape.row_tokens},
              random_) {
    for (size_t i = 0; i < branches.size(); ++i) {
      put(static_cast<int32_t>(i), branches[i]);
    }
    queries_ = random_floats(random_, std::ssize(spans_) * width(), 2.0f);
  }

  const KvPagesView& view() const { return rows_.view(); }
  int32_t capacity() const { return view().layouts[0].capacity; }
  const int32_t* pages(int64_t sequence, int32_t kv_head) const {
    return view().table(
        view().row_index(spans_[static_cast<size_t>(sequence)].slot, kLayer, kv_head));
  }

  AttentionArgs args() {
    out_.assign(queries_.size(), NAN);
    log_sums_.assign(spans_.size() * static_cast<size_t>(query_heads()), NAN);
    const int64_t count = std::ssize(spans_);
    return {.queries = {queries_.data(), count, width(), width()},
            .sequences = spans_,
            .pages = view(),
            .layer = kLayer,
            .query_heads = query_heads(),
            .scale = 0.25f,
            .sliding_window = shape_.sliding_window,
            .dense = {},
            .out = {out_.data(), count, width(), width()},
            .log_sums = {log_sums_.data(), count, query_heads(), query_heads()},
            .scratch = {}};
  }

  // Returns: bits of the outputs, log sums and weights.
  std::vector<uint32_t> attend(const Backend& backend, int threads, bool share_reads) {
    ThreadPool pool(threads);
    AttentionArgs args = this->args();
    const auto count = static_cast<int32_t>(spans_.size());
    std::vector<std::byte> scratch(static_cast<size_t>(backend.attention_scratch_bytes(
        {count, count, shape_.row_tokens}, query_heads(), shape_.head_dim)));
    args.scratch = scratch;
    args.share_reads = share_reads;
    // Every other sequence leaves weights for kv_score. With a sliding window no sequence is
    // scored.
    std::vector<KvScoring> scorings(spans_.size());
    const int64_t cols = attention_weight_row_floats(shape_.row_tokens, shape_.gqa_ratio);
    std::vector<float> weights(static_cast<size_t>(count * shape_.kv_heads * cols));
    if (shape_.sliding_window == 0) {
      for (size_t i = 0; i < scorings.size(); i += 2) {
        scorings[i] = {.token_scores = true, .scorer = KvScorer::sum, .begin = 0, .end = INT32_MAX};
      }
      args.scorings = scorings;
      args.weights = {weights.data(), int64_t{count} * shape_.kv_heads, cols, cols};
    }
    backend.attention(args, pool.stream());
    std::vector<uint32_t> bits;
    for (const auto* floats : {&out_, &log_sums_, &weights}) {
      for (const float x : *floats) {
        bits.push_back(std::bit_cast<uint32_t>(x));
      }
    }
    return bits;
  }

 private:
  static constexpr int32_t kLayer = 1;
  int32_t query_heads() const { return shape_.kv_heads * shape_.gqa_ratio; }
  int64_t width() const { return int64_t{query_heads()} * shape_.head_dim; }

  void put(int32_t slot, const Branch& branch) {
    const int32_t common = branch.pages * capacity();
    for (int32_t head = 0; head < shape_.kv_heads; ++head) {
      const int64_t row = view().row_index(slot, kLayer, head);
      if (slot > 0) {
        std::copy_n(pages(static_cast<int64_t>(branch.from), head), branch.pages,
                    rows_.tables().begin() + row * view().row_pages);
        view().rows[row].high = common;
      }
      for (int32_t i = 0; i < branch.own.high + branch.own.low; ++i) {
        const auto keys = random_floats(random_, shape_.head_dim);
        const auto values = random_floats(random_, shape_.head_dim);
        if (i < branch.own.high) {
          rows_.append_high(row, 0, keys, values);
        } else {
          rows_.append_low(row, 1, keys, values);
        }
      }
      for (int32_t i = 0; i < kKvGroup; ++i) {
        KvRows::put(view().residual_layout, view().residual(row), i,
                    random_floats(random_, shape_.head_dim),
                    random_floats(random_, shape_.head_dim));
      }
    }
    // Whole groups are stored; part of the next one is in the residual buffer.
    const int32_t stored = common * (slot > 0 ? 1 : 0) + branch.own.high + branch.own.low;
    const int32_t open = static_cast<int32_t>(random_() % (kKvGroup - 1));
    const uint8_t low_tier = shape_.sliding_window > 0 ? 0 : 1;
    spans_.push_back({slot, slot, 1, stored / kKvGroup * kKvGroup + open, KvTiers{0, low_tier}});
  }

  Shape shape_;
  std::mt19937 random_;
  KvRows rows_;
  std::vector<SequenceSpan> spans_;
  std::vector<float> queries_;
  std::vector<float> out_;
  std::vector<float> log_sums_;
};

// Each sequence begins like a random earlier one, up to a random place.
std::vector<Branch> random_branches(std::mt19937& random, int32_t capacity, int32_t tokens) {
  const auto below = [&](int32_t end) {
    return static_cast<int32_t>(random() % static_cast<uint32_t>(end));
  };
  const size_t count = 2 + random() % 9;
  std::vector<Branch> branches{{0, 0, {tokens / 64 * 64, 0}}};
  std::vector<int32_t> full{branches[0].own.high / capacity};  // pages
  while (branches.size() < count) {
    const size_t from = random() % branches.size();
    const int32_t max = full[from];
    const int32_t pages = random() % 4 == 0 ? max : below(max + 1);
    const int32_t low = random() % 3 == 0 ? 64 * below(3) : 0;
    branches.push_back({from, pages, {64 * below(4), low}});
    full.push_back((pages * capacity + branches.back().own.high) / capacity);
  }
  return branches;
}

class SharedAttention : public testing::TestWithParam<CpuIsa> {
 protected:
  const Backend& backend() const { return cpu_backend(GetParam()); }
};

TEST_P(SharedAttention, HasTheBitsOfEverySequenceReadingForItself) {
  uint32_t seed = 1;
  for (const KvFormat format : {kKvF32, kKvF16, kKvFp8, kKvK8V8, kKvK8V4, kKvK4V4, kKvK4V2, kKvK4V1,
                                kKvK4V2R, kKvK3V3R, kKvK6V4R, kKvS50, kKvS70K8V8}) {
    for (Shape shape : {Shape{.gqa_ratio = 2},
                        Shape{.head_dim = 24, .kv_heads = 3, .gqa_ratio = 7, .page_tokens = 64},
                        Shape{.kv_heads = 1, .gqa_ratio = 1, .page_tokens = 48},
                        Shape{.head_dim = 8, .kv_heads = 1, .gqa_ratio = 24, .page_tokens = 32}}) {
      shape.high = format;
      for (int round = 0; round < 3; ++round, ++seed) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        std::mt19937 random(seed);
        const KvFormat formats[] = {shape.high, shape.low};
        int64_t page_bytes = 0;
        for (const KvFormat each : formats) {
          page_bytes = std::max(
              page_bytes, KvPageLayout::make(each, shape.head_dim, shape.page_tokens).page_bytes);
        }
        const int32_t capacity = KvPageLayout::fit(shape.high, shape.head_dim, page_bytes).capacity;
        // The scalar backend is slow and shares nothing, so it gets fewer tokens.
        const int32_t tokens = GetParam() == CpuIsa::scalar ? 130 : round == 0 ? 2200 : 700;
        SharedSequences sequences(shape, random_branches(random, capacity, tokens), seed);
        const auto alone = sequences.attend(backend(), 1, false);
        for (const int threads : {1, 3}) {
          ASSERT_EQ(alone, sequences.attend(backend(), threads, true)) << threads << " threads";
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
    ASSERT_EQ(sequences.attend(backend(), 1, false), sequences.attend(backend(), 2, true))
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

TEST(AttentionPlan, WhatRunsReadWholeIsNoItemAndShortItemsAreTakenSeveralAtOnce) {
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
