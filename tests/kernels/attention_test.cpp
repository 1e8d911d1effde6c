#include <gtest/gtest.h>

#include <bit>
#include <string>

#include "tests/kernels/attention_sequences.h"

namespace tessera {
namespace {

using Steps = std::vector<std::vector<Chunk>>;

class Attention : public testing::TestWithParam<CpuIsa> {
 protected:
  const Backend& backend() const { return cpu_backend(GetParam()); }

  // Compares every `stride`-th position and all of the last.
  void expect_near_double_precision(const AttentionSequences& sequences, int32_t stride = 1) const {
    const AttentionShape& shape = sequences.shape();
    const auto out = sequences.run(backend(), 2, sequences.all_at_once());
    for (size_t s = 0; s < out.size(); ++s) {
      const int32_t length = sequences.lengths()[s];
      for (int32_t p = (length - 1) % stride; p < length; p += stride) {
        for (int32_t head = 0; head < shape.query_heads(); ++head) {
          for (int32_t channel = 0; channel < shape.head_dim; channel += 5) {
            const auto expected = sequences.expected(s, p, head, channel);
            const int64_t index =
                (int64_t{p} * shape.query_heads() + head) * shape.head_dim + channel;
            ASSERT_NEAR(double{out[s][static_cast<size_t>(index)]}, expected.value, expected.bound)
                << testing::PrintToString(shape) << " sequence " << s << " of length " << length
                << " position " << p << " head " << head << " channel " << channel;
          }
        }
      }
    }
  }

  static void expect_same_bits(const std::vector<std::vector<float>>& one,
                               const std::vector<std::vector<float>>& other) {
    ASSERT_EQ(one.size(), other.size());
    for (size_t s = 0; s < one.size(); ++s) {
      ASSERT_EQ(one[s].size(), other[s].size());
      for (size_t i = 0; i < one[s].size(); ++i) {
        ASSERT_EQ(std::bit_cast<uint32_t>(one[s][i]), std::bit_cast<uint32_t>(other[s][i]))
            << "sequence " << s << " element " << i << ": " << one[s][i] << " and " << other[s][i];
      }
    }
  }
};

TEST_P(Attention, IsNearDoublePrecisionForEveryHeadDim) {
  uint32_t seed = 1;
  for (const KvFormat format : {kKvF32, kKvF16, KvFormat{16, 32}, KvFormat{32, 16}}) {
    for (const int32_t head_dim : {8, 16, 24, 40, 48, 64, 80, 96, 112, 128, 192, 256}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      expect_near_double_precision(
          {{.format = format, .head_dim = head_dim, .group = 3}, {1, 65, 130}, seed++}, 9);
    }
  }
}

TEST_P(Attention, IsNearDoublePrecisionForEveryGroup) {
  for (int32_t group = 1; group <= 16; ++group) {
    SCOPED_TRACE(testing::Message() << "seed " << group);
    expect_near_double_precision(
        {{.group = group, .page_tokens = 32}, {70, 3}, static_cast<uint32_t>(group)}, 7);
  }
  expect_near_double_precision({{.kv_heads = 1, .group = 71}, {20}, 99}, 3);
}

TEST_P(Attention, IsNearDoublePrecisionAtEveryLengthAroundATile) {
  for (const int32_t page_tokens : {16, 48, 64, 128}) {
    std::vector<int32_t> lengths;
    for (const int32_t length : {1, 2, 15, 16, 17, 31, 33, 47, 48, 49, 63, 64, 65, 127, 129, 200}) {
      lengths.push_back(length);
    }
    for (const KvFormat format : {kKvF32, kKvF16}) {
      expect_near_double_precision(
          {{.format = format, .kv_heads = 1, .page_tokens = page_tokens}, lengths, 7}, 3);
    }
  }
}

TEST_P(Attention, IsNearDoublePrecisionInALongContext) {
  expect_near_double_precision({{.kv_heads = 1}, {2500}, 11}, 101);
  expect_near_double_precision({{.format = kKvF32, .kv_heads = 1}, {1024, 1025}, 12}, 97);
}

TEST_P(Attention, SeesTheLastPositionsOnlyUnderAWindow) {
  for (const int32_t window : {1, 2, 15, 63, 64, 65, 100, 1000}) {
    expect_near_double_precision(
        {{.format = kKvF32, .kv_heads = 1, .window = window}, {1, 64, 65, 250}, 13}, 3);
  }
  expect_near_double_precision({{.kv_heads = 1, .window = 1100}, {2300}, 14}, 57);
}

TEST_P(Attention, ReadsNoPageBeforeTheWindow) {
  // A sequence whose early pages are gone, as they are when a window has passed them.
  ThreadPool pool(1);
  const KvPageLayout layout = KvPageLayout::make(kKvF32, 8, 16);
  const auto arena = KvArena::make({layout, 4, 1, 1, 1, 64});
  const std::vector<KvRowResize> change{{0, 0, 4}};
  backend().kv_resize({.pool = arena->pool(), .changes = change}, pool.stream());
  std::mt19937 random(15);
  std::vector<float> keys = random_floats(random, 64 * 8);
  std::vector<float> values = random_floats(random, 64 * 8);
  const std::vector<SequenceSpan> prompt{{0, 0, 64, 0}};
  backend().kv_store({{keys.data(), 64, 8, 8}, {values.data(), 64, 8, 8}, prompt, arena->view(), 0},
                     pool.stream());
  const std::vector<SequenceSpan> last{{0, 0, 1, 63}};
  std::vector<std::byte> scratch(4096);
  std::vector<float> results[2] = {std::vector<float>(8), std::vector<float>(8)};
  for (std::vector<float>& result : results) {
    backend().attention({.queries = {keys.data(), 1, 8, 8},
                         .sequences = last,
                         .pages = arena->view(),
                         .query_heads = 1,
                         .scale = 1.0f,
                         .window = 20,
                         .out = {result.data(), 1, 8, 8},
                         .scratch = scratch},
                        pool.stream());
    arena->pool().tables[0] = kNoPage;  // positions 0 to 31; the window begins at 44
    arena->pool().tables[1] = kNoPage;
  }
  EXPECT_EQ(results[0], results[1]);
}

// The rule that makes serving deterministic: a row's bits do not depend on what else is computed.
TEST_P(Attention, HasTheSameBitsForAnyChunksAndAnyBatch) {
  uint32_t seed = 100;
  for (const KvFormat format : {kKvF32, kKvF16}) {
    for (const AttentionShape& shape :
         {AttentionShape{.format = format, .head_dim = 8, .kv_heads = 1, .group = 3},
          AttentionShape{.format = format, .head_dim = 24, .kv_heads = 2, .group = 7},
          AttentionShape{.format = format, .head_dim = 80, .kv_heads = 1, .group = 1, .window = 77},
          AttentionShape{
              .format = format, .head_dim = 128, .kv_heads = 1, .group = 8, .page_tokens = 48}}) {
      const AttentionSequences sequences(shape, {130, 1, 65, 200, 64}, seed);
      const auto whole = sequences.run(backend(), 1, sequences.all_at_once());
      for (int round = 0; round < 3; ++round, ++seed) {
        SCOPED_TRACE(testing::Message() << testing::PrintToString(shape) << " seed " << seed);
        expect_same_bits(whole, sequences.run(backend(), 2, sequences.random_steps(seed, 50)));
      }
    }
  }
}

TEST_P(Attention, HasTheSameBitsTokenByTokenAsAllAtOnceAcrossSpans) {
  for (const KvFormat format : {kKvF32, kKvF16}) {
    for (const int32_t window : {0, 1030}) {
      const AttentionSequences sequences(
          {.format = format, .head_dim = 8, .kv_heads = 1, .group = 2, .window = window}, {2200},
          21);
      Steps one_by_one(2200, {{0, 1}});
      expect_same_bits(sequences.run(backend(), 2, sequences.all_at_once()),
                       sequences.run(backend(), 2, one_by_one));
    }
  }
}

TEST_P(Attention, HasTheSameBitsAloneAsInABatch) {
  const AttentionShape shape{.head_dim = 64, .kv_heads = 2, .group = 4};
  const AttentionSequences batch(shape, {1500, 40, 1100}, 31);
  const AttentionSequences alone(shape, {1500}, 31);  // the same seed: the same first sequence
  const Steps together{{{0, 1499}, {1, 39}, {2, 1099}}, {{2, 1}, {0, 1}, {1, 1}}};
  auto in_batch = batch.run(backend(), 2, together);
  in_batch.resize(1);
  expect_same_bits(alone.run(backend(), 1, {{{0, 1499}}, {{0, 1}}}), in_batch);
}

TEST_P(Attention, HasTheSameBitsForAnyNumberOfThreads) {
  const AttentionSequences sequences({.head_dim = 32, .kv_heads = 2, .group = 4}, {1300, 90, 1},
                                     41);
  const Steps steps = sequences.random_steps(42, 700);
  const auto with_one = sequences.run(backend(), 1, steps);
  for (const int threads : {2, 3}) {
    expect_same_bits(with_one, sequences.run(backend(), threads, steps));
  }
}

TEST_P(Attention, IsNearTheScalarOracle) {
  const AttentionSequences sequences({.head_dim = 128, .kv_heads = 1, .group = 4}, {300}, 51);
  const auto oracle = sequences.run(cpu_backend(CpuIsa::scalar), 2, sequences.all_at_once());
  const auto out = sequences.run(backend(), 2, sequences.all_at_once());
  for (size_t i = 0; i < out[0].size(); ++i) {
    // Both read the same pages, so that only the order and rounding of f32 sums differ.
    ASSERT_NEAR(out[0][i], oracle[0][i], 2e-5f) << "element " << i;
  }
}

TEST_P(Attention, StaysFiniteWithHugeScoresAndValues) {
  ThreadPool pool(1);
  const auto arena = KvArena::make({KvPageLayout::make(kKvF16, 8, 16), 1, 1, 1, 1, 16});
  const std::vector<KvRowResize> change{{0, 0, 1}};
  backend().kv_resize({.pool = arena->pool(), .changes = change}, pool.stream());
  std::vector<float> keys(16, 1e6f);  // beyond f16: stored as its largest
  std::vector<float> values(16, -1e9f);
  const std::vector<SequenceSpan> spans{{0, 0, 2, 0}};
  backend().kv_store({{keys.data(), 2, 8, 8}, {values.data(), 2, 8, 8}, spans, arena->view(), 0},
                     pool.stream());
  std::vector<float> out(16);
  std::vector<std::byte> scratch(4096);
  backend().attention({.queries = {keys.data(), 2, 8, 8},
                       .sequences = spans,
                       .pages = arena->view(),
                       .query_heads = 1,
                       .scale = 1e6f,
                       .out = {out.data(), 2, 8, 8},
                       .scratch = scratch},
                      pool.stream());
  for (const float x : out) {
    EXPECT_EQ(x, -65504.0f);
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, Attention, testing::ValuesIn(isas_of_this_machine()),
                         [](const auto& instance) { return std::string(name(instance.param)); });

}  // namespace
}  // namespace tessera
