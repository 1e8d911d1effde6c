#include <gtest/gtest.h>

#include <cmath>

#include "bench/ops/paper_leankv.h"
#include "kernels/cpu/pages/page_codec.h"
#include "tests/kernels/device.h"
#include "tests/kernels/isas.h"
#include "tests/kernels/kv_sequences.h"

namespace tessera {
namespace {

struct ScoreShape {
  KvPolicy policy;
  int32_t head_dim = 16;
  int32_t kv_heads = 2;
  int32_t group = 2;
  int32_t prompt = 200;
  int32_t tokens = 270;
  // Compresses once, after so many tokens; 0: never. A chunk must end there.
  int32_t compress_at = 0;
  bool weights = true;  // whether there is room for those of queries that decode
};

// One sequence in one layer, whose tokens' scores can be computed in any chunks.
class ScoredSequence {
 public:
  ScoredSequence(const ScoreShape& shape, uint32_t seed) : shape_(shape) {
    std::mt19937 random(seed);
    queries_ = random_floats(random, shape.tokens * query_cols(), 2.0f);
    keys_ = random_floats(random, shape.tokens * kv_cols());
    values_ = random_floats(random, shape.tokens * kv_cols());
  }

  // chunks: counts of tokens, which sum to shape.tokens. Returns the marks of each head by
  // position.
  std::vector<std::vector<float>> run(const Device& device, const std::vector<int32_t>& chunks) {
    make_arena(device);
    int32_t stored = 0;
    for (const int32_t count : chunks) {
      step(device, stored, count);
      stored += count;
      if (stored == shape_.compress_at) {
        compress(device, stored);
      }
    }
    EXPECT_EQ(stored, shape_.tokens);
    std::vector<std::vector<float>> scores;
    for (int32_t head = 0; head < shape_.kv_heads; ++head) {
      scores.push_back(scores_of(head));
    }
    return scores;
  }

  // In double precision, query by query, over keys as they are stored.
  std::vector<double> expected(int32_t head) const {
    const KvScoring scoring = scoring_of(shape_.policy, shape_.prompt);
    std::vector<double> scores(static_cast<size_t>(shape_.tokens));
    for (int32_t p = scoring.begin; p < std::min(scoring.end, shape_.tokens); ++p) {
      for (int32_t g = 0; g < shape_.group; ++g) {
        const std::vector<double> weights = softmax(head, g, p);
        for (int32_t t = 0; t <= p; ++t) {
          const double a = weights[static_cast<size_t>(t)];
          scores[static_cast<size_t>(t)] +=
              scoring.scorer == KvScorer::squares ? a * a : a / shape_.group;
        }
      }
    }
    return scores;
  }

 private:
  int64_t query_cols() const { return kv_cols() * shape_.group; }
  int64_t kv_cols() const { return int64_t{shape_.kv_heads} * shape_.head_dim; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)); }
  KvTiers tiers() const { return {0, static_cast<uint8_t>(shape_.policy.has_low_tier() ? 1 : 0)}; }

  void make_arena(const Device& device) {
    KvArenaShape shape{.formats = {shape_.policy.high},
                       .head_dim = shape_.head_dim,
                       .slots = 2,
                       .layers = 1,
                       .kv_heads = shape_.kv_heads,
                       .context = shape_.tokens,
                       .marks = true};
    if (shape_.policy.has_low_tier()) {
      shape.formats.push_back(shape_.policy.low);
    }
    shape.page_bytes = KvPageLayout::make(shape_.policy.high, shape_.head_dim, 32).page_bytes;
    shape.pages = static_cast<int32_t>(shape.rows()) * (shape.row_pages() + 1);
    arena_ = std::make_unique<ReachedArena>(device, shape);
  }

  MatrixView<const float> rows(const std::vector<float>& all, int64_t cols, int32_t first,
                               int32_t count) const {
    return {all.data() + first * cols, count, cols, cols};
  }

  void step(const Device& device, int32_t context, int32_t count) {
    const Backend& backend = *device.backend;
    store_step(device, **arena_,
               {{1, context, count, keys_.data() + context * kv_cols(),
                 values_.data() + context * kv_cols(), tiers()}},
               0);
    const SequenceSpan spans[] = {{1, 0, count, context, tiers()}};
    // store_step's dense groups are gone; the same again into our own.
    std::vector<std::byte> dense = dense_of(spans[0]);
    std::vector<float> out(static_cast<size_t>(count * query_cols()));
    std::vector<float> log_sums(static_cast<size_t>(count * shape_.kv_heads * shape_.group));
    const int32_t query_heads = shape_.kv_heads * shape_.group;
    std::vector<std::byte> scratch(static_cast<size_t>(
        backend.attention_scratch_bytes({count, 1, shape_.tokens}, query_heads, shape_.head_dim)));
    const MatrixView<float> log_sum_rows{log_sums.data(), count, query_heads, query_heads};
    const KvScoring scorings[] = {scoring_of(shape_.policy, shape_.prompt)};
    const int64_t weight_cols = kv_weight_row_floats(shape_.tokens, shape_.group);
    std::vector<float> weights(static_cast<size_t>(shape_.kv_heads * weight_cols), NAN);
    const MatrixView<float> weight_rows{weights.data(), shape_.weights ? shape_.kv_heads : 0,
                                        weight_cols, weight_cols};
    backend.attention({.queries = rows(queries_, query_cols(), context, count),
                       .sequences = spans,
                       .pages = (*arena_)->view(),
                       .query_heads = query_heads,
                       .scale = scale(),
                       .dense = dense,
                       .out = {out.data(), count, query_cols(), query_cols()},
                       .log_sums = log_sum_rows,
                       .scorings = scorings,
                       .weights = weight_rows,
                       .scratch = scratch},
                      device.stream);
    backend.kv_score({.queries = rows(queries_, query_cols(), context, count),
                      .log_sums = log_sum_rows,
                      .sequences = spans,
                      .scorings = scorings,
                      .weights = weight_rows,
                      .pages = (*arena_)->view(),
                      .query_heads = query_heads,
                      .scale = scale(),
                      .dense = dense},
                     device.stream);
    device.wait(device.stream);
  }

  // The groups of a span that close before its last one, in f16, as kv_store leaves them.
  std::vector<std::byte> dense_of(const SequenceSpan& span) const {
    const KvPageLayout& layout = (*arena_)->view().window_layout;
    std::vector<std::byte> dense(
        static_cast<size_t>(dense_groups(span) * shape_.kv_heads * layout.page_bytes));
    for (int32_t group = span.closed_before(); group < span.last_group(); ++group) {
      for (int32_t head = 0; head < shape_.kv_heads; ++head) {
        std::byte* page = dense.data() + ((group - span.closed_before()) * shape_.kv_heads + head) *
                                             layout.page_bytes;
        for (int32_t t = 0; t < kKvGroup; ++t) {
          const int64_t at = (group * kKvGroup + t) * kv_cols() + head * shape_.head_dim;
          encode_token(layout, keys_.data() + at, values_.data() + at, page, t);
        }
      }
    }
    return dense;
  }

  void compress(const Device& device, int32_t tokens) {
    const Backend& backend = *device.backend;
    const KvCompression one[] = {{.slot = 1,
                                  .tiers = tiers(),
                                  .policy = shape_.policy,
                                  .tokens = tokens,
                                  .prompt_tokens = shape_.prompt}};
    KvCompressed result;
    std::vector<std::byte> scratch(
        static_cast<size_t>(backend.kv_compress_scratch_bytes((*arena_)->view(), device.stream)));
    backend.kv_compress({(*arena_)->pool(), one, {&result, 1}, scratch}, device.stream);
    EXPECT_GT(result.demoted, 0);
  }

  std::vector<float> scores_of(int32_t head) const {
    const KvPagesView pages = (*arena_)->view();
    const int64_t row = pages.row_index(1, 0, head);
    const KvRow counts = pages.rows[row];
    std::vector<float> scores(static_cast<size_t>(shape_.tokens), -1.0f);
    for (int32_t i = 0; i < counts.high + shape_.tokens % kKvGroup; ++i) {
      const KvMark& mark = pages.mark_row(row)[i];
      scores[static_cast<size_t>(mark.position)] = mark.score;
    }
    for (int32_t j = 0; j < counts.low; ++j) {
      const KvMark& mark = pages.mark_row(row)[pages.row_marks - 1 - j];
      scores[static_cast<size_t>(mark.position)] = mark.score;
    }
    return scores;
  }

  // The key of position t as a query at position p reads it. Requires: no compression.
  std::vector<float> key_at(int32_t head, int32_t t, int32_t p) const {
    const KvPagesView pages = (*arena_)->view();
    const int64_t at = t * kv_cols() + head * shape_.head_dim;
    std::vector<float> key(static_cast<size_t>(shape_.head_dim));
    std::vector<float> value(key.size());
    const KvPageLayout& high = pages.layouts[0];
    if (t / kKvGroup < p / kKvGroup) {
      const int64_t row = pages.row_index(1, 0, head);
      decode_token(high, pages.page(pages.table(row)[t / high.capacity]), t % high.capacity,
                   key.data(), value.data());
    } else {
      std::vector<std::byte> page(static_cast<size_t>(pages.window_layout.page_bytes));
      encode_token(pages.window_layout, keys_.data() + at, values_.data() + at, page.data(), 0);
      decode_token(pages.window_layout, page.data(), 0, key.data(), value.data());
    }
    return key;
  }

  std::vector<double> softmax(int32_t head, int32_t g, int32_t p) const {
    const float* query =
        queries_.data() + p * query_cols() + (head * shape_.group + g) * shape_.head_dim;
    std::vector<double> weights;
    double sum = 0;
    for (int32_t t = 0; t <= p; ++t) {
      const std::vector<float> key = key_at(head, t, p);
      double dot = 0;
      for (int32_t c = 0; c < shape_.head_dim; ++c) {
        dot += double{query[c]} * key[static_cast<size_t>(c)];
      }
      weights.push_back(std::exp(dot * scale()));
      sum += weights.back();
    }
    for (double& weight : weights) {
      weight /= sum;
    }
    return weights;
  }

  ScoreShape shape_;
  std::vector<float> queries_;
  std::vector<float> keys_;
  std::vector<float> values_;
  std::unique_ptr<ReachedArena> arena_;
};

KvPolicy scored(KvScorer scorer, int32_t window, bool generated, KvFormat high) {
  KvPolicy policy;
  policy.high = high;
  policy.low = high;
  policy.scorer = scorer;
  policy.score_window = window;
  policy.score_generated = generated;
  policy.rule = KvRule::budget;
  policy.keep_share = 0.5f;
  return policy;
}

class KvScore : public testing::TestWithParam<Device> {
 protected:
  const Device& device() const { return GetParam(); }
  bool leaves_weights() const {
    return device().backend->name == std::string("cpu") && device().name != "scalar";
  }
};

// What is multiplied as f16 may be off by more, as half_step.h says.
TEST_P(KvScore, IsTheAttentionThatCountingQueriesPaid) {
  uint32_t seed = 1;
  for (const KvFormat format : named_formats()) {
    const bool halves = format.is_sparse() && multiplies_halves(*device().backend);
    const double relative = halves ? 2e-2 : 2e-3;
    for (const KvScorer scorer : {KvScorer::mean, KvScorer::sum, KvScorer::squares}) {
      ScoreShape shape{.policy = scored(scorer, seed % 3 == 0 ? 0 : 40, seed % 2 == 0, format)};
      shape.group = 1 + static_cast<int32_t>(seed % 5);
      shape.head_dim = seed % 4 == 0 ? 80 : 16;
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      ScoredSequence sequence(shape, seed++);
      const auto scores = sequence.run(device(), {100, 100, 30, 40});
      for (int32_t head = 0; head < shape.kv_heads; ++head) {
        const std::vector<double> expected = sequence.expected(head);
        for (size_t t = 0; t < expected.size(); ++t) {
          const double score = scores[static_cast<size_t>(head)][t];
          ASSERT_NEAR(score, expected[t], 1e-5 + relative * expected[t])
              << "head " << head << " token " << t;
        }
      }
    }
  }
}

TEST_P(KvScore, DoesNotDependOnChunks) {
  const std::vector<std::vector<int32_t>> cuts{
      {192, 8, 70}, {1, 63, 64, 64, 8, 1, 1, 1, 67}, {199, 1, 55, 1, 14}, {100, 100, 70}};
  for (const KvFormat format : {kKvF16, kKvK8V4, kKvK4V2, kKvS50, kKvS70K8V4}) {
    for (const KvScorer scorer : {KvScorer::mean, KvScorer::squares}) {
      ScoredSequence sequence({.policy = scored(scorer, 90, true, format)}, 77);
      const auto whole = sequence.run(device(), {270});
      for (const std::vector<int32_t>& chunks : cuts) {
        EXPECT_EQ(sequence.run(device(), chunks), whole);
      }
    }
  }
}

TEST_P(KvScore, ReadsBothTiersAfterCompression) {
  ScoreShape shape{.policy = paper_leankv(), .compress_at = 200};
  ScoredSequence sequence(shape, 5);
  const auto whole = sequence.run(device(), {200, 70});
  EXPECT_EQ(sequence.run(device(), {150, 50, 1, 9, 60}), whole);
  // Each of the 64 + 70 counting queries' attention sums to one.
  for (const std::vector<float>& scores : whole) {
    double sum = 0;
    for (const float score : scores) {
      EXPECT_GE(score, 0.0f);
      sum += score;
    }
    EXPECT_NEAR(sum, 134, 0.01);
  }
}

TEST_P(KvScore, WeightsThatAttentionLeftGiveTheBitsOfAnotherProduct) {
  if (!leaves_weights()) {
    GTEST_SKIP() << "this backend leaves none";
  }
  uint32_t seed = 100;
  for (const KvFormat format : named_formats()) {
    for (const int32_t group : {1, 2, 4, 8}) {
      const int32_t head_dims[] = {64, 80, 128};
      ScoreShape shape{
          .policy = scored(seed % 2 == 0 ? KvScorer::mean : KvScorer::squares, 40, true, format)};
      shape.group = group;
      shape.head_dim = head_dims[seed % 3];
      shape.tokens = 210;
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      const std::vector<int32_t> chunks{190, 1, 1, 1, 7, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
      const auto with = ScoredSequence(shape, seed).run(device(), chunks);
      shape.weights = false;
      EXPECT_EQ(ScoredSequence(shape, seed++).run(device(), chunks), with);
    }
  }
}

// A long row's tiles are shared among threads, and attention cuts it into spans.
TEST_P(KvScore, WeightsOfLongRowsAreThoseOfTheirTiles) {
  if (!leaves_weights()) {
    GTEST_SKIP() << "this backend leaves none";
  }
  ScoreShape shape{.policy = paper_leankv(), .prompt = 2200, .tokens = 2262, .compress_at = 2200};
  std::vector<int32_t> chunks{2200};
  chunks.resize(63, 1);
  const auto with = ScoredSequence(shape, 7).run(device(), chunks);
  shape.weights = false;
  EXPECT_EQ(ScoredSequence(shape, 7).run(device(), {2200, 62}), with);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(KvScore);
INSTANTIATE_TEST_SUITE_P(Device, KvScore, testing::ValuesIn(devices_of_this_machine()),
                         [](const auto& device) { return device.param.name; });

}  // namespace
}  // namespace tessera
