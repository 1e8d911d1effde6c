// Residual buffers of codes (KvArenaShape::coded_residuals).
#include <gtest/gtest.h>

#include <bit>

#include "kernels/cpu/pages/page_codec.h"
#include "tests/kernels/attention_expectations.h"
#include "tests/kernels/attention_sequences.h"
#include "tests/kernels/kv_sequences.h"
#include "tests/kernels/scored_sequence.h"

namespace tessera {
namespace {

constexpr KvFormat kCodes[] = {kKvK8V8, kKvK8V4, kKvK4V2, kKvK4V1, kKvK4V4R, kKvK3V3R, kKvK6V4R};

class CodedResiduals : public testing::TestWithParam<CpuIsa> {
 protected:
  const Backend& backend() const { return cpu_backend(GetParam()); }

  void expect_near_double_precision(const AttentionShape& shape, std::vector<int32_t> lengths,
                                    uint32_t seed, int32_t stride) const {
    SCOPED_TRACE(testing::Message() << testing::PrintToString(shape) << " seed " << seed);
    const AttentionSequences sequences(shape, std::move(lengths), seed);
    expect_near(sequences, sequences.run(backend(), 2, sequences.all_at_once()),
                AttentionSequences::Against::stored, stride, AttentionSequences::Sparse::f32);
  }

  static bool same_bits(const std::vector<float>& one, const std::vector<float>& other) {
    return std::equal(one.begin(), one.end(), other.begin(), other.end(), [](float a, float b) {
      return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
    });
  }
};

KvArenaShape arena_of(KvFormat format, int32_t head_dim, bool coded) {
  KvArenaShape shape{.formats = {format},
                     .head_dim = head_dim,
                     .page_bytes = KvPageLayout::make(format, head_dim, 32).page_bytes,
                     .slots = 2,
                     .layers = 1,
                     .kv_heads = 2,
                     .context = 200,
                     .coded_residuals = coded};
  shape.pages = static_cast<int32_t>(shape.rows()) * shape.row_pages();
  return shape;
}

struct RandomTokens {
  RandomTokens(int32_t count, int32_t head_dim, uint32_t seed) {
    std::mt19937 random(seed);
    keys = random_floats(random, int64_t{count} * 2 * head_dim, 100.0f);
    values = random_floats(random, int64_t{count} * 2 * head_dim, 0.01f);
    keys[0] = 1e30f;
    keys[1] = -INFINITY;
    keys[static_cast<size_t>(4 * head_dim)] = NAN;
    std::fill_n(values.begin() + 2 * head_dim, head_dim, 3.25f);
  }
  std::vector<float> keys;
  std::vector<float> values;
};

// Returns: the tokens of a row as floats, closed ones first.
std::vector<float> decoded_row(const KvArena& arena, int32_t slot, int32_t head, int32_t length) {
  const KvPagesView pages = arena.view();
  const int64_t row = pages.row_index(slot, 0, head);
  std::vector<float> floats;
  const auto add = [&](const KvPageLayout& layout, const std::byte* page, int32_t token) {
    std::vector<float> key(static_cast<size_t>(pages.head_dim));
    std::vector<float> value(key.size());
    decode_token(layout, page, token, key.data(), value.data());
    floats.insert(floats.end(), key.begin(), key.end());
    floats.insert(floats.end(), value.begin(), value.end());
  };
  const KvPageLayout& layout = pages.layouts[0];
  for (int32_t i = 0; i < pages.rows[row].high; ++i) {
    add(layout, pages.page(pages.table(row)[i / layout.capacity]), i % layout.capacity);
  }
  for (int32_t i = 0; i < length % kKvGroup; ++i) {
    add(pages.residual_layout, pages.residual(row), i);
  }
  return floats;
}

std::vector<float> store(const Backend& backend, const KvArenaShape& shape,
                         const RandomTokens& tokens, const std::vector<int32_t>& chunks) {
  ThreadPool pool(1);
  const auto arena = make_arena_of_nan(shape);
  int32_t stored = 0;
  for (const int32_t count : chunks) {
    const int64_t at = int64_t{stored} * 2 * shape.head_dim;
    store_step(backend, pool, *arena,
               {{1, stored, count, tokens.keys.data() + at, tokens.values.data() + at, {}}}, 0);
    stored += count;
  }
  std::vector<float> floats = decoded_row(*arena, 1, 0, stored);
  const std::vector<float> other = decoded_row(*arena, 1, 1, stored);
  floats.insert(floats.end(), other.begin(), other.end());
  return floats;
}

TEST_P(CodedResiduals, StoreTheSameCodesInAnyChunksAsTheScalarOracle) {
  uint32_t seed = 1;
  for (const KvFormat format : kCodes) {
    for (const int32_t head_dim : {8, 24, 64, 80, 128}) {
      SCOPED_TRACE(testing::Message() << name_of(format) << " " << head_dim << " seed " << seed);
      const RandomTokens tokens(200, head_dim, seed++);
      const KvArenaShape shape = arena_of(format, head_dim, true);
      const auto oracle = store(cpu_backend(CpuIsa::scalar), shape, tokens, {200});
      EXPECT_TRUE(same_bits(store(backend(), shape, tokens, {200}), oracle));
      EXPECT_TRUE(same_bits(store(backend(), shape, tokens, {1, 15, 17, 40, 90, 36, 1}), oracle));
    }
  }
}

// Codes of 8 bits that are encoded again stay as they are, so only the open group differs.
TEST_P(CodedResiduals, GiveClosedGroupsTheBytesThatFloatsGiveThem) {
  for (const int32_t head_dim : {24, 64, 128}) {
    const RandomTokens tokens(192, head_dim, 40 + static_cast<uint32_t>(head_dim));
    const auto from = [&](bool coded) {
      return store(backend(), arena_of(kKvK8V8, head_dim, coded), tokens, {100, 92});
    };
    EXPECT_TRUE(same_bits(from(true), from(false))) << head_dim;
  }
}

TEST_P(CodedResiduals, TakeLittleMoreThanHalfOfTheMemory) {
  const KvArenaShape coded = arena_of(kKvK8V4, 64, true);
  const KvArenaShape floats = arena_of(kKvK8V4, 64, false);
  EXPECT_EQ(floats.slot_residual_bytes(), 2 * 64 * 64 * 2 * 2);
  EXPECT_EQ(coded.slot_residual_bytes(), 2 * 64 * (64 + 4) * 2);
}

TEST_P(CodedResiduals, AreReadNearDoublePrecision) {
  uint32_t seed = 60;
  for (const KvFormat format : kCodes) {
    for (const int32_t head_dim : {8, 40, 64, 80, 128}) {
      for (const int32_t gqa_ratio : {1, 3, 8}) {
        expect_near_double_precision({.high = format,
                                      .low = format,
                                      .head_dim = head_dim,
                                      .kv_heads = 1,
                                      .gqa_ratio = gqa_ratio,
                                      .coded_residuals = true},
                                     {1, 15, 17, 63, 64, 65, 130}, seed++, 11);
      }
    }
  }
}

TEST_P(CodedResiduals, AreReadBesideTwoTiersAndASlidingWindow) {
  uint32_t seed = 200;
  for (const auto& [high, low] :
       {std::pair{kKvK8V4, kKvK4V2}, std::pair{kKvK8V4, kKvK4V2R}, std::pair{kKvK4V4R, kKvK4V2}}) {
    for (const KvRow history : {KvRow{0, 0}, KvRow{0, 77}, KvRow{63, 65}, KvRow{130, 0}}) {
      expect_near_double_precision({.high = high,
                                    .low = low,
                                    .head_dim = 24,
                                    .page_tokens = 32,
                                    .context = 640,
                                    .history_high = history.high,
                                    .history_low = history.low,
                                    .coded_residuals = true},
                                   {1, 66, 130}, seed++, 13);
    }
  }
  for (const int32_t window : {1, 15, 64, 100}) {
    expect_near_double_precision({.high = kKvK8V4,
                                  .low = kKvK8V4,
                                  .kv_heads = 1,
                                  .sliding_window = window,
                                  .coded_residuals = true},
                                 {1, 64, 65, 250}, seed++, 7);
  }
}

TEST_P(CodedResiduals, GiveTheSameBitsForAnyChunksAndAnyBatch) {
  uint32_t seed = 300;
  for (const KvFormat format : kCodes) {
    for (AttentionShape shape :
         {AttentionShape{.head_dim = 24, .kv_heads = 2, .gqa_ratio = 7},
          AttentionShape{.head_dim = 80, .kv_heads = 1, .gqa_ratio = 1, .sliding_window = 77},
          AttentionShape{.head_dim = 128, .kv_heads = 1, .gqa_ratio = 4, .page_tokens = 48}}) {
      shape.high = shape.low = format;
      shape.coded_residuals = true;
      SCOPED_TRACE(testing::Message() << testing::PrintToString(shape) << " seed " << seed);
      const AttentionSequences sequences(shape, {130, 1, 65, 200, 64}, seed);
      const Attended whole = sequences.run(backend(), 1, sequences.all_at_once());
      const Attended chunks = sequences.run(backend(), 2, sequences.random_steps(seed++, 90));
      for (size_t s = 0; s < whole.out.size(); ++s) {
        EXPECT_TRUE(same_bits(whole.out[s], chunks.out[s])) << "sequence " << s;
        EXPECT_TRUE(same_bits(whole.log_sums[s], chunks.log_sums[s])) << "sequence " << s;
      }
    }
  }
}

TEST_P(CodedResiduals, AreScoredAsTheyAreRead) {
  ThreadPool pool(2);
  const Device device{
      .name = std::string(name(GetParam())), .backend = &backend(), .stream = pool.stream()};
  uint32_t seed = 400;
  for (const KvFormat format : {kKvK8V8, kKvK8V4, kKvK4V2R}) {
    for (const KvScorer scorer : {KvScorer::sum, KvScorer::replay}) {
      SCOPED_TRACE(testing::Message() << name_of(format) << " seed " << seed);
      const ScoreShape shape{.policy = scored(scorer, 40, true, format), .coded_residuals = true};
      ScoredSequence sequence(shape, seed++);
      const auto scores = sequence.run(device, {100, 100, 30, 40});
      for (int32_t head = 0; head < shape.kv_heads; ++head) {
        const std::vector<double> expected = sequence.expected(head);
        for (size_t t = 0; t < expected.size(); ++t) {
          ASSERT_NEAR(double{scores[static_cast<size_t>(head)][t]}, expected[t],
                      1e-5 + 2e-3 * expected[t])
              << "head " << head << " token " << t;
        }
      }
      EXPECT_EQ(sequence.run(device, {1, 63, 64, 64, 8, 1, 1, 1, 67}), scores);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, CodedResiduals, testing::ValuesIn(isas_of_attention()),
                         [](const auto& instance) { return std::string(name(instance.param)); });

}  // namespace
}  // namespace tessera
