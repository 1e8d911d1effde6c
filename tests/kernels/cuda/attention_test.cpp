#include <gtest/gtest.h>

#include <bit>

#include "tests/kernels/attention_expectations.h"
#include "tests/kernels/attention_sequences.h"
#include "tests/kernels/kv_sequences.h"

namespace tessera {
namespace {

using Against = AttentionSequences::Against;

constexpr KvFormat kFormats[] = {kKvF32,  kKvF16,     kKvK8V8,    kKvK8V4,     kKvK4V4,
                                 kKvK4V2, kKvK4V1,    kKvK4V8,    kKvK2V4,     KvFormat{2, 1},
                                 kKvS50,  kKvS70K4V4, kKeysAlone, kValuesAlone};

AttentionShape uniform(KvFormat format) {
  return {.high = format, .low = format};
}

class CudaAttention : public testing::TestWithParam<Device> {
 protected:
  // Compares every `stride`-th row, the last one included, with double precision. The bounds are
  // those of the CPU.
  void expect_near(const AttentionSequences& sequences, const Steps& steps,
                   int32_t stride = 1) const {
    tessera::expect_near(sequences, sequences.run(GetParam(), steps), Against::stored, stride);
  }
  void expect_near(const AttentionSequences& sequences, int32_t stride = 1) const {
    expect_near(sequences, sequences.all_at_once(), stride);
  }

  // All tokens of a prompt but the last, then the last as a decode step.
  static Steps prompt_then_decode(const AttentionSequences& sequences) {
    Steps steps(2);
    for (size_t i = 0; i < sequences.lengths().size(); ++i) {
      const int32_t sequence = static_cast<int32_t>(i);
      if (sequences.lengths()[i] > 1) {
        steps[0].push_back({sequence, sequences.lengths()[i] - 1});
      }
      steps[1].push_back({sequence, 1});
    }
    return steps;
  }

  static void expect_same_bits(const Attended& one, const Attended& other) {
    ASSERT_EQ(one.out.size(), other.out.size());
    for (size_t s = 0; s < one.out.size(); ++s) {
      ASSERT_EQ(one.out[s].size(), other.out[s].size());
      for (size_t i = 0; i < one.out[s].size(); ++i) {
        ASSERT_EQ(std::bit_cast<uint32_t>(one.out[s][i]), std::bit_cast<uint32_t>(other.out[s][i]))
            << "sequence " << s << " element " << i;
      }
      ASSERT_EQ(one.log_sums[s], other.log_sums[s]);
    }
  }
};

TEST_P(CudaAttention, IsNearDoublePrecisionForEveryHeadDim) {
  uint32_t seed = 1;
  for (const KvFormat format : kFormats) {
    const std::vector<int32_t> head_dims = format.is_sparse()
                                               ? std::vector<int32_t>{48, 80, 128}
                                               : std::vector<int32_t>{16, 48, 64, 80, 96, 128};
    for (const int32_t head_dim : head_dims) {
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      AttentionShape shape = uniform(format);
      shape.head_dim = head_dim;
      shape.kv_heads = 1;
      const AttentionSequences sequences(shape, {130}, seed++);
      expect_near(sequences, prompt_then_decode(sequences), 43);
    }
  }
}

TEST_P(CudaAttention, IsNearDoublePrecisionForEveryGqaRatio) {
  for (const KvFormat format : {kKvF16, kKvK8V4, kKvS70K4V4}) {
    for (const int32_t gqa_ratio : {1, 3, 4, 5, 8, 9, 16, 71}) {
      SCOPED_TRACE(testing::Message() << "seed " << gqa_ratio);
      AttentionShape shape = uniform(format);
      shape.kv_heads = 1;
      shape.gqa_ratio = gqa_ratio;
      shape.page_tokens = 32;
      const AttentionSequences sequences(shape, {67}, static_cast<uint32_t>(gqa_ratio));
      expect_near(sequences, prompt_then_decode(sequences), 11);
    }
  }
}

TEST_P(CudaAttention, IsNearDoublePrecisionAtEveryLengthAroundATile) {
  for (const int32_t page_tokens : {16, 48, 64}) {
    for (const KvFormat format : kFormats) {
      if (format.is_sparse() && page_tokens != 48) {
        continue;
      }
      AttentionShape shape = uniform(format);
      shape.kv_heads = 1;
      shape.page_tokens = page_tokens;
      const AttentionSequences sequences(shape, {1, 2, 16, 17, 63, 64, 65, 80, 129}, 7);
      expect_near(sequences, prompt_then_decode(sequences), 16);
    }
  }
}

// 40 tiles are five splits of four slices. In decode a warp computes a slice, or a split if slices
// are not wanted. In a prompt it computes all of them.
TEST_P(CudaAttention, MergesSplitsOfALongContext) {
  for (const auto& [format, divide_splits] :
       {std::pair{kKvF16, true}, std::pair{kKvF16, false}, std::pair{kKvK4V2, true},
        std::pair{kKvK4V2, false}, std::pair{kKvS70, true}, std::pair{kKvS70, false}}) {
    AttentionShape shape = uniform(format);
    shape.divide_splits = divide_splits;
    shape.kv_heads = 1;
    shape.gqa_ratio = format == kKvF16 ? 11 : 2;  // 11: two blocks of query heads
    shape.context = 2496;
    shape.history_high = 2496;
    const AttentionSequences sequences(shape, {21, 20}, 11);
    expect_near(sequences, {{{0, 20}}, {{1, 19}, {0, 1}}, {{1, 1}}}, 4);
  }
}

// High pages, low pages of another format, and the open group, in one launch; heads differ.
TEST_P(CudaAttention, ReadsBothTiersAndTheOpenGroup) {
  uint32_t seed = 70;
  for (const auto& [high, low] :
       {std::pair{kKvK8V4, kKvK4V2}, std::pair{kKvF16, kKvK4V1}, std::pair{kKvF16, kKvK2V4},
        std::pair{kKvF16, kKvS50}, std::pair{kKvK8V4, kKvS70K4V4}, std::pair{kKvS50, kKvS70}}) {
    for (const int32_t tokens : {3, 100}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      AttentionShape shape{.high = high, .low = low, .head_dim = 32};
      shape.context = 256;
      shape.history_high = tokens;
      shape.history_low = 104 - tokens;
      const AttentionSequences sequences(shape, {70}, seed++);
      expect_near(sequences, {{{0, 30}}, {{0, 1}}, {{0, 39}}}, 9);
    }
  }
}

TEST_P(CudaAttention, MasksByASlidingWindow) {
  for (const KvFormat format : {kKvF32, kKvF16, kKvK8V4, kKvK4V2, kKvS50}) {
    for (const int32_t sliding_window : {1, 63, 65, 100}) {
      AttentionShape shape = uniform(format);
      shape.kv_heads = 1;
      shape.sliding_window = sliding_window;
      const AttentionSequences sequences(shape, {200}, static_cast<uint32_t>(sliding_window));
      expect_near(sequences, prompt_then_decode(sequences), 13);
    }
  }
}

TEST_P(CudaAttention, BearsScoresThatSpread) {
  for (const KvFormat format : {kKvF16, kKvK8V8, kKvS50K4V4}) {
    AttentionShape shape = uniform(format);
    shape.kv_heads = 1;
    shape.spread = 40.0f;
    const AttentionSequences sequences(shape, {150}, 5);
    // Weights below 2^-36 of a tile's largest are 0 in two f16. If only such tokens keep a channel,
    // it has no other weights.
    const auto sparse =
        format.is_sparse() ? AttentionSequences::Sparse::halves : AttentionSequences::Sparse::f32;
    tessera::expect_near(sequences, sequences.run(GetParam(), sequences.all_at_once()),
                         Against::stored, 29, sparse);
  }
}

// Prompt and decode have the same arithmetic, for any chunks and any batch.
TEST_P(CudaAttention, HasTheSameBitsForAnyChunks) {
  for (const KvFormat format : {kKvF16, kKvK8V4, kKvK4V2, kKvS70K4V4}) {
    AttentionShape shape = uniform(format);
    shape.kv_heads = 1;
    shape.gqa_ratio = 5;
    shape.context = 512;
    shape.history_high = 512;
    const AttentionSequences sequences(shape, {140, 70}, 23);
    const Attended whole = sequences.run(GetParam(), sequences.all_at_once());
    expect_same_bits(whole, sequences.run(GetParam(), sequences.random_steps(1, 150)));
  }
}

// Decode of rows of one format has a kernel of its own at head dimensions 64 and 128. Prompts have
// the kernel for all formats.
TEST_P(CudaAttention, HasTheSameBitsInTheKernelOfItsFormat) {
  for (const KvFormat format : {kKvF16, kKvK8V4, kKvK4V2, kKvS70}) {
    for (const int32_t head_dim : {64, 128}) {
      SCOPED_TRACE(testing::Message() << name_of(format) << " head_dim " << head_dim);
      AttentionShape shape = uniform(format);
      shape.head_dim = head_dim;
      shape.kv_heads = 1;
      shape.gqa_ratio = 4;
      shape.page_tokens = 32;
      shape.context = 640;  // ten tiles: two splits
      shape.history_high = 597;
      const AttentionSequences sequences(shape, {70}, 24);
      const Steps steps{{{0, 3}}, {{0, 1}}, {{0, 59}}, {{0, 1}}, {{0, 1}}, {{0, 4}}, {{0, 1}}};
      const Attended whole = sequences.run(GetParam(), sequences.all_at_once());
      expect_same_bits(whole, sequences.run(GetParam(), steps));
      shape.divide_splits = false;
      const AttentionSequences in_splits(shape, {70}, 24);
      expect_same_bits(whole, in_splits.run(GetParam(), steps));
    }
  }
}

// Lists of many items have blocks of four warps, those of few have blocks of one.
TEST_P(CudaAttention, HasTheSameBitsInBlocksOfOneWarpAndOfFour) {
  AttentionShape shape = uniform(kKvS70);
  shape.head_dim = 64;
  shape.kv_heads = 8;
  shape.gqa_ratio = 1;
  shape.context = 640;
  shape.history_high = 20;
  constexpr int32_t kSequences = 140;  // times 8 heads: above kFewWarps on 132 multiprocessors
  const AttentionSequences sequences(shape, std::vector<int32_t>(kSequences, 1), 25);
  Steps one_by_one;
  for (int32_t i = 0; i < kSequences; ++i) {
    one_by_one.push_back({{i, 1}});
  }
  expect_same_bits(sequences.run(GetParam(), sequences.all_at_once()),
                   sequences.run(GetParam(), one_by_one));
}

// Up to 8 new tokens of a sequence are listed like decode, if the list has room. The second step
// crosses a group; the third has sequences of one token, of several, and a prompt.
TEST_P(CudaAttention, HasTheSameBitsForAFewTokensInAListAsInAPrompt) {
  struct Case {
    KvFormat format;
    int32_t gqa_ratio;
    int32_t head_dim;
  };
  // Each format and each ratio at least once: the emulator takes seconds for a case.
  const std::vector<Case> cases{
      {kKvF32, 1, 64}, {kKvF16, 5, 64}, {kKvK4V2, 4, 128}, {kKvK4V2, 1, 64}, {kKvS70, 5, 64}};
  uint32_t seed = 60;
  for (const Case& one : cases) {
    SCOPED_TRACE(testing::Message() << name_of(one.format) << " seed " << seed);
    AttentionShape shape = uniform(one.format);
    shape.head_dim = one.head_dim;
    shape.kv_heads = one.gqa_ratio == 1 ? 2 : 1;
    shape.gqa_ratio = one.gqa_ratio;
    shape.context = 640;
    shape.history_high = 640;
    const std::vector<int32_t> lengths{69, 72, 90};
    const Steps steps{
        {{0, 60}, {1, 60}, {2, 60}}, {{0, 8}, {1, 5}, {2, 7}}, {{0, 1}, {1, 7}, {2, 23}}};
    const AttentionSequences listed(shape, lengths, seed);
    const Attended whole = listed.run(GetParam(), listed.all_at_once());
    expect_same_bits(whole, listed.run(GetParam(), steps));
    shape.divide_splits = false;
    const AttentionSequences in_splits(shape, lengths, seed);
    expect_same_bits(whole, in_splits.run(GetParam(), steps));
    shape.room = 1;
    const AttentionSequences prompts(shape, lengths, seed++);
    expect_same_bits(whole, prompts.run(GetParam(), steps));
  }
}

// The token at position 511 closes the group that would begin a second split, but reads one split.
TEST_P(CudaAttention, ListsTheSplitsOfAQueryWhoseGroupCloses) {
  AttentionShape shape = uniform(kKvK8V4);
  shape.kv_heads = 1;
  shape.context = 448;
  shape.history_high = 448;
  const AttentionSequences sequences(shape, {70}, 80);
  const Attended whole = sequences.run(GetParam(), sequences.all_at_once());
  expect_same_bits(whole, sequences.run(GetParam(), {{{0, 60}}, {{0, 4}}, {{0, 6}}}));
  expect_same_bits(whole, sequences.run(GetParam(), {{{0, 63}}, {{0, 1}}, {{0, 1}}, {{0, 5}}}));
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaAttention);
INSTANTIATE_TEST_SUITE_P(Cuda, CudaAttention, testing::ValuesIn(devices_of_this_machine()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace tessera
