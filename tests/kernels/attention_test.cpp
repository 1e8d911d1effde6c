#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numeric>
#include <string>

#include "tests/kernels/attention_expectations.h"
#include "tests/kernels/attention_sequences.h"

namespace tessera {
namespace {

using Against = AttentionSequences::Against;
using Sparse = AttentionSequences::Sparse;

constexpr KvFormat kFormats[] = {kKvF32,
                                 kKvF16,
                                 kKvFp8,
                                 kKvK8V8,
                                 kKvK8V4,
                                 kKvK4V4,
                                 kKvK4V2,
                                 kKvK4V1,
                                 kKvK4V8,
                                 kKvK2V4,
                                 kKvK4V4R,
                                 kKvK4V2R,
                                 kKvK3V3R,
                                 kKvK6V4R,
                                 KvFormat{2, 1},
                                 kKvS70,
                                 kKvS50K4V4,
                                 KvFormat{16, 4, 125, 1000},
                                 KvFormat{4, 16, 1000, 1}};

AttentionShape uniform(KvFormat format) {
  return {.high = format, .low = format};
}

class Attention : public testing::TestWithParam<CpuIsa> {
 protected:
  const Backend& backend() const { return cpu_backend(GetParam()); }

  // Compares every `stride`-th row, the last one included.
  void expect_near(const AttentionSequences& sequences, Against against, int32_t stride = 1) const {
    tessera::expect_near(sequences, sequences.run(backend(), 2, sequences.all_at_once()), against,
                         stride, sparse());
  }
  Sparse sparse() const { return multiplies_halves(backend()) ? Sparse::halves : Sparse::f32; }

  void expect_near_double_precision(const AttentionSequences& sequences, int32_t stride = 1) const {
    expect_near(sequences, Against::stored, stride);
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
  static void expect_same_bits(const Attended& one, const Attended& other) {
    expect_same_bits(one.out, other.out);
    expect_same_bits(one.log_sums, other.log_sums);
  }
};

TEST_P(Attention, IsNearDoublePrecisionForEveryHeadDim) {
  uint32_t seed = 1;
  for (const KvFormat format : kFormats) {
    for (const int32_t head_dim : {8, 16, 24, 40, 48, 64, 80, 96, 112, 128, 192, 256}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      AttentionShape shape = uniform(format);
      shape.head_dim = head_dim;
      shape.gqa_ratio = 3;
      expect_near_double_precision({shape, {1, 65, 130}, seed++}, 16);
    }
  }
}

TEST_P(Attention, IsNearDoublePrecisionForEveryGqaRatio) {
  for (const KvFormat format : {kKvF16, kKvK8V4, kKvK4V1, kKvS70}) {
    for (int32_t gqa_ratio = 1; gqa_ratio <= 16; ++gqa_ratio) {
      SCOPED_TRACE(testing::Message() << "seed " << gqa_ratio);
      AttentionShape shape = uniform(format);
      shape.gqa_ratio = gqa_ratio;
      shape.page_tokens = 32;
      expect_near_double_precision({shape, {70, 3}, static_cast<uint32_t>(gqa_ratio)}, 7);
    }
    AttentionShape wide = uniform(format);
    wide.kv_heads = 1;
    wide.gqa_ratio = 71;
    expect_near_double_precision({wide, {67}, 99}, 3);
  }
}

TEST_P(Attention, IsNearDoublePrecisionAtEveryLengthAroundATile) {
  const std::vector<int32_t> lengths{1,  2,  15, 16, 17, 31, 32,  33,  47,
                                     48, 49, 63, 64, 65, 80, 127, 129, 200};
  for (const int32_t page_tokens : {16, 48, 64, 128}) {
    for (const KvFormat format : kFormats) {
      AttentionShape shape = uniform(format);
      shape.kv_heads = 1;
      shape.page_tokens = page_tokens;
      expect_near_double_precision({shape, lengths, 7}, 5);
    }
  }
}

TEST_P(Attention, IsNearDoublePrecisionInALongContext) {
  for (const KvFormat format : {kKvF32, kKvF16, kKvK8V4, kKvK4V2, kKvS50}) {
    AttentionShape shape = uniform(format);
    shape.kv_heads = 1;
    expect_near_double_precision({shape, {1024, 1025, 2500}, 11}, 201);
  }
}

// Heads keep different numbers of tokens: in full, partly filled or no tiles.
TEST_P(Attention, IsNearDoublePrecisionOverTwoTiers) {
  struct Tiers {
    KvFormat high;
    KvFormat low;
  };
  uint32_t seed = 200;
  for (const Tiers tiers :
       {Tiers{kKvK8V4, kKvK4V2}, Tiers{kKvF16, kKvK4V4}, Tiers{kKvK8V8, kKvK4V1},
        Tiers{kKvK4V2, kKvK4V2}, Tiers{kKvF16, kKvF16}, Tiers{kKvS50, kKvS70K4V4},
        Tiers{kKvK8V4, kKvK4V2R}, Tiers{kKvK4V4R, kKvK4V2R}, Tiers{kKvK4V4R, kKvK4V2},
        Tiers{kKvK4V4R, kKvS70K4V4}, Tiers{kKvK4V3R, kKvK3V2R}, Tiers{kKvK6V4R, kKvK4V2},
        Tiers{kKvFp8, kKvK3V3R}, Tiers{kKvS50K4V4, kKvK4V2R}}) {
    for (const KvRow history : {KvRow{0, 0}, KvRow{1, 0}, KvRow{0, 1}, KvRow{64, 64}, KvRow{63, 65},
                                KvRow{200, 0}, KvRow{0, 200}, KvRow{130, 77}}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      const int32_t page_tokens = 16 * (1 + static_cast<int32_t>(seed % 3));
      expect_near_double_precision({{.high = tiers.high,
                                     .low = tiers.low,
                                     .head_dim = 24,
                                     .page_tokens = page_tokens,
                                     .context = 640,
                                     .history_high = history.high,
                                     .history_low = history.low},
                                    {1, 66, 130},
                                    seed++},
                                   13);
    }
  }
}

// The formats' steps bound the cost of quantisation; nothing bounds the cost of pruning. Queries
// are small, because a score's error is in the exponent.
TEST_P(Attention, IsAsNearToTheOriginalsAsTheStepsSay) {
  uint32_t seed = 300;
  for (const KvFormat format : kFormats) {
    if (format.is_sparse()) {
      continue;
    }
    for (const int32_t head_dim : {64, 80, 128}) {
      for (const int32_t gqa_ratio : {1, 2, 4, 8}) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        AttentionShape shape = uniform(format);
        shape.head_dim = head_dim;
        shape.kv_heads = 1;
        shape.gqa_ratio = gqa_ratio;
        shape.spread = 0.1f;
        expect_near({shape, {1, 31, 32, 33, 200}, seed++}, Against::originals, 18);
      }
    }
  }
}

TEST_P(Attention, SeesTheLastPositionsOnlyWithASlidingWindow) {
  for (const KvFormat format : {kKvF32, kKvF16, kKvK8V4, kKvS50}) {
    AttentionShape shape = uniform(format);
    shape.kv_heads = 1;
    for (const int32_t sliding_window : {1, 2, 15, 63, 64, 65, 100, 1000}) {
      shape.sliding_window = sliding_window;
      expect_near_double_precision({shape, {1, 64, 65, 250}, 13}, 7);
    }
    shape.sliding_window = 1100;
    expect_near_double_precision({shape, {2300}, 14}, 157);
  }
}

// Requirement for deterministic serving: the bits of a row do not depend on the rest of the batch.
TEST_P(Attention, HasTheSameBitsForAnyChunksAndAnyBatch) {
  uint32_t seed = 400;
  for (const KvFormat format : kFormats) {
    for (AttentionShape shape :
         {AttentionShape{.head_dim = 8, .kv_heads = 1, .gqa_ratio = 3},
          AttentionShape{.head_dim = 24, .kv_heads = 2, .gqa_ratio = 7},
          AttentionShape{.head_dim = 80, .kv_heads = 1, .gqa_ratio = 1, .sliding_window = 77},
          AttentionShape{.head_dim = 128, .kv_heads = 1, .gqa_ratio = 4, .page_tokens = 48}}) {
      shape.high = shape.low = format;
      const AttentionSequences sequences(shape, {130, 1, 65, 200, 64}, seed);
      const Attended whole = sequences.run(backend(), 1, sequences.all_at_once());
      for (int round = 0; round < 2; ++round, ++seed) {
        SCOPED_TRACE(testing::Message() << testing::PrintToString(shape) << " seed " << seed);
        expect_same_bits(whole, sequences.run(backend(), 2, sequences.random_steps(seed, 90)));
      }
    }
  }
}

TEST_P(Attention, HasTheSameBitsForAnyChunksOverTwoTiers) {
  uint32_t seed = 500;
  for (const auto& [high, low] : {std::pair{kKvK8V4, kKvK4V2}, std::pair{kKvK4V4R, kKvK4V2}}) {
    for (const KvRow history : {KvRow{100, 0}, KvRow{0, 333}, KvRow{1111, 900}}) {
      const AttentionSequences sequences({.high = high,
                                          .low = low,
                                          .head_dim = 16,
                                          .kv_heads = 3,
                                          .context = 2048,
                                          .history_high = history.high,
                                          .history_low = history.low},
                                         {130, 65, 1}, seed);
      const Attended whole = sequences.run(backend(), 1, sequences.all_at_once());
      for (int round = 0; round < 3; ++round, ++seed) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        expect_same_bits(whole, sequences.run(backend(), 2, sequences.random_steps(seed, 20)));
      }
    }
  }
}

TEST_P(Attention, HasTheSameBitsTokenByTokenAsAllAtOnceAcrossSplits) {
  for (const KvFormat format : {kKvF32, kKvF16, kKvK8V4, kKvS70}) {
    for (const int32_t sliding_window : {0, 1030}) {
      const AttentionSequences sequences({.high = format,
                                          .low = format,
                                          .head_dim = 8,
                                          .kv_heads = 1,
                                          .sliding_window = sliding_window},
                                         {2200}, 21);
      const Steps one_by_one(2200, {{0, 1}});
      expect_same_bits(sequences.run(backend(), 2, sequences.all_at_once()),
                       sequences.run(backend(), 2, one_by_one));
    }
  }
}

TEST_P(Attention, HasTheSameBitsAloneAsInABatch) {
  const AttentionShape shape{.high = kKvK8V4, .low = kKvK8V4, .head_dim = 24, .gqa_ratio = 3};
  const AttentionSequences batch(shape, {1200, 40, 1100}, 31);
  const AttentionSequences alone(shape, {1200}, 31);  // the same seed: the same first sequence
  const Steps together{{{0, 1199}, {1, 39}, {2, 1099}}, {{2, 1}, {0, 1}, {1, 1}}};
  Attended in_batch = batch.run(backend(), 2, together);
  in_batch.out.resize(1);
  in_batch.log_sums.resize(1);
  expect_same_bits(alone.run(backend(), 1, {{{0, 1199}}, {{0, 1}}}), in_batch);
}

TEST_P(Attention, HasTheSameBitsForAnyNumberOfThreads) {
  for (const KvFormat format : {kKvF16, kKvK4V2}) {
    AttentionShape shape = uniform(format);
    shape.head_dim = 24;
    const AttentionSequences sequences(shape, {1200, 90, 1}, 41);
    const Steps steps = sequences.random_steps(42, 700);
    const Attended with_one = sequences.run(backend(), 1, steps);
    for (const int threads : {2, 3}) {
      expect_same_bits(with_one, sequences.run(backend(), threads, steps));
    }
  }
}

// Both kernels read the same codes and round queries alike, so only the order and rounding of f32
// sums differ. Now and then a weight is rounded to the adjacent integer: an error of one code times
// the tile's largest weight * scale / 32512. Values spread over less than 8. A rotation adds up
// such errors of all channels. The oracle takes whole prompts, over several pages; the other
// kernels take any chunks. Products in f16 differ by more. The bounds of IsNearDoublePrecision say
// how much they may differ, this test how much they do.
TEST_P(Attention, IsNearTheScalarOracle) {
  uint32_t seed = 51;
  for (const KvFormat format : kFormats) {
    for (const int32_t head_dim : {64, 80, 128}) {
      for (const int32_t gqa_ratio : {1, 2, 4, 8}) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        AttentionShape shape = uniform(format);
        shape.head_dim = head_dim;
        shape.kv_heads = 1;
        shape.gqa_ratio = gqa_ratio;
        const AttentionSequences sequences(shape, {1, 31, 32, 33, 150}, seed++);
        const Steps chunks = sequences.random_steps(seed, 70);
        const float flips = format.rotated ? 8 : 2;
        const float flip = format.is_codes() ? 8.0f / 32512 : 0;
        const bool halves = format.is_sparse() && sparse() == Sparse::halves;
        const float bound = halves ? 0x1p-6f : 2e-5f + flips * flip;
        const Attended oracle =
            sequences.run(cpu_backend(CpuIsa::scalar), 2, sequences.all_at_once());
        const Attended attended = sequences.run(backend(), 2, chunks);
        for (size_t s = 0; s < oracle.out.size(); ++s) {
          for (size_t i = 0; i < oracle.out[s].size(); ++i) {
            ASSERT_NEAR(attended.out[s][i], oracle.out[s][i], bound)
                << testing::PrintToString(shape) << " sequence " << s << " element " << i;
          }
        }
      }
    }
  }
}

// A sequence of 64 positions in one row of f32 pages, attended by its last position.
std::vector<float> attend_the_last(const Backend& backend, const KvRows& rows,
                                   std::span<const float> query, int32_t sliding_window) {
  ThreadPool pool(1);
  const int32_t head_dim = rows.view().head_dim;
  std::vector<float> out(query.size());
  std::vector<std::byte> scratch(8192);
  std::vector<float> queries(query.begin(), query.end());
  const std::vector<SequenceSpan> last{{0, 0, 1, 64, {}}};
  backend.attention({.queries = {queries.data(), 1, head_dim, head_dim},
                     .sequences = last,
                     .pages = rows.view(),
                     .query_heads = 1,
                     .scale = 1.0f,
                     .sliding_window = sliding_window,
                     .dense = {},
                     .out = {out.data(), 1, head_dim, head_dim},
                     .log_sums = {},
                     .scratch = scratch},
                    pool.stream());
  return out;
}

TEST_P(Attention, ReadsNoPageBeforeTheSlidingWindow) {
  std::mt19937 random(15);
  KvRows rows({{kKvF32}, 8, 16, 1, 1, 1, 64}, random);
  for (int32_t i = 0; i < 65; ++i) {
    const auto keys = random_floats(random, 8);
    const auto values = random_floats(random, 8);
    if (i < 64) {
      rows.append_high(0, 0, keys, values);
    } else {
      KvRows::put(rows.view().residual_layout, rows.view().residual(0), 0, keys, values);
    }
  }
  const auto query = random_floats(random, 8);
  const auto before = attend_the_last(backend(), rows, query, 20);
  rows.tables()[0] = -1;  // positions 0 to 31; the sliding window begins at 45
  rows.tables()[1] = -1;
  EXPECT_EQ(before, attend_the_last(backend(), rows, query, 20));
}

TEST_P(Attention, StaysFiniteWithHugeScoresAndValues) {
  for (const KvFormat format : {kKvF16, kKvK8V4, kKvK4V1}) {
    std::mt19937 random(16);
    KvRows rows({{format}, 8, 16, 1, 1, 1, 64}, random);
    const std::vector<float> keys(8, 65504.0f);
    const std::vector<float> values(8, -65504.0f);
    for (int32_t i = 0; i < 64; ++i) {
      rows.append_high(0, 0, keys, values);
    }
    KvRows::put(rows.view().residual_layout, rows.view().residual(0), 0, keys, values);
    for (const float x : attend_the_last(backend(), rows, std::vector<float>(8, 1e12f), 0)) {
      EXPECT_EQ(x, -65504.0f);
    }
  }
}

// All tokens are equal, at the ends of the range of f16. No sum overflows, and underflow is no more
// than half_step.h says.
TEST_P(Attention, StaysNearValuesOfAnySizeInSparsePages) {
  constexpr KvFormat kAllKept{16, 16, 999, 999};
  for (const int32_t head_dim : {8, 64, 128, 256}) {
    for (const float key : {65504.0f, -65504.0f, 0x1p-24f, 0.0f}) {
      for (const float value : {65504.0f, -65504.0f, 1.0f, 0x1p-14f, 0x1p-24f, 0.0f}) {
        std::mt19937 random(17);
        KvRows rows({{kAllKept}, head_dim, 16, 1, 1, 1, 64}, random);
        const std::vector<float> keys(static_cast<size_t>(head_dim), key);
        const std::vector<float> values(static_cast<size_t>(head_dim), value);
        for (int32_t i = 0; i < 64; ++i) {
          rows.append_high(0, 0, keys, values);
        }
        KvRows::put(rows.view().residual_layout, rows.view().residual(0), 0, keys, values);
        for (const float query : {1e12f, 1.0f, 1e-12f, 1e-38f, 0.0f}) {
          SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << " key " << key << " value "
                                          << value << " query " << query);
          const std::vector<float> queries(static_cast<size_t>(head_dim), query);
          const float bound = sparse() == Sparse::halves ? 0x1p-7f * std::abs(value) + 0x1p-19f
                                                         : 0x1p-20f * std::abs(value);
          for (const float x : attend_the_last(backend(), rows, queries, 0)) {
            ASSERT_NEAR(x, value, bound);
          }
        }
      }
    }
  }
}

double mean_square(const std::vector<double>& numbers) {
  return std::inner_product(numbers.begin(), numbers.end(), numbers.begin(), 0.0) /
         static_cast<double>(numbers.size());
}

// The other bounds are for the worst case; this is the average cost of sums in f16.
TEST(SparseHalves, CostAFiveHundredthOfValuesOnAverage) {
  if (!cpu_supports(CpuIsa::avx512_fp16)) {
    GTEST_SKIP() << "no AVX512-FP16";
  }
  for (const KvFormat format : {kKvS50, kKvS70, kKvS70K4V4}) {
    AttentionShape shape = uniform(format);
    shape.head_dim = 128;
    shape.gqa_ratio = 4;
    const AttentionSequences sequences(shape, {700}, 61);
    const Attended attended =
        sequences.run(cpu_backend(CpuIsa::avx512_fp16), 2, sequences.all_at_once());
    std::vector<double> values;
    std::vector<double> errors;
    for (int32_t row = 128; row < 700; row += 13) {
      for (int32_t head = 0; head < shape.query_heads(); ++head) {
        const auto expected = sequences.expected(0, row, head, Against::stored);
        const float* out =
            &attended.out[0][static_cast<size_t>((row * shape.query_heads() + head) * 128)];
        for (size_t c = 0; c < 128; ++c) {
          values.push_back(expected.values[c]);
          errors.push_back(double{out[c]} - expected.values[c]);
        }
      }
    }
    EXPECT_LT(std::sqrt(mean_square(errors) / mean_square(values)), 0x1p-9) << name_of(format);
    EXPECT_GT(mean_square(errors), 0) << name_of(format);
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, Attention, testing::ValuesIn(isas_of_attention()),
                         [](const auto& instance) { return std::string(name(instance.param)); });

}  // namespace
}  // namespace tessera
