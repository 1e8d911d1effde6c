#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cpu/pages/page_codec.h"
#include "tests/kernels/device.h"
#include "tests/kernels/isas.h"
#include "tests/kernels/kv_sequences.h"
#include "tests/kernels/step_plan.h"

namespace tessera {

struct ScoreShape {
  KvPolicy policy;
  int32_t head_dim = 16;
  int32_t kv_heads = 2;
  int32_t gqa_ratio = 2;
  int32_t prompt = 200;
  int32_t tokens = 270;
  // Tokens after which it compresses once; 0: never. A chunk must end there.
  int32_t compress_at = 0;
  // Sequences before it in each step. Each has one token, which counts as its own tokens do.
  int32_t others = 0;
  bool weights = true;  // room for the weights of all decode queries; false: not for its own
  bool blind = false;   // kv_score gets no queries in steps of one token
  // Not 0: queries behind the prompt count for its last `section` tokens. A chunk must end there.
  int32_t section = 0;
  bool section_alone = false;  // only the section has scores (KvPagesView::section_scores)
  bool coded_residuals = false;
};

// One sequence in one layer. The scores of its tokens can be computed in any chunks.
class ScoredSequence {
 public:
  ScoredSequence(const ScoreShape& shape, uint32_t seed) : shape_(shape) {
    std::mt19937 random(seed);
    queries_ = random_floats(random, shape.tokens * query_cols(), 2.0f);
    keys_ = random_floats(random, shape.tokens * kv_cols());
    values_ = random_floats(random, shape.tokens * kv_cols());
    if (shape.coded_residuals) {  // kv_store makes their codes from f16
      for (float& x : keys_) x = to_f32(to_f16(x));
      for (float& x : values_) x = to_f32(to_f16(x));
    }
    residual_ = random_floats(random, shape.tokens * kResidual, 3.0f);
  }

  // chunks: numbers of tokens; their sum is shape.tokens.
  // Returns: scores of each head by position.
  std::vector<std::vector<float>> run(const Device& device, const std::vector<int32_t>& chunks) {
    make_arena(device);
    read_[0].clear();
    read_[1].clear();
    steps_ = 0;
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

  // Expected scores in double precision, query by query, over keys as stored.
  std::vector<double> expected(int32_t head) const {
    const KvScoring scoring = scoring_of(shape_.policy, shape_.prompt);
    std::vector<double> scores(static_cast<size_t>(shape_.tokens));
    for (int32_t p = scoring.begin; p < std::min(scoring.end, shape_.tokens); ++p) {
      for (int32_t g = 0; g < shape_.gqa_ratio; ++g) {
        const std::vector<double> weights = softmax(head, g, p);
        const double divisor = weighs_output(scoring.scorer) ? residual_rms(p) : 1;
        for (int32_t t = 0; t <= p; ++t) {
          const double a = weights[static_cast<size_t>(t)] / divisor;
          double& score = scores[static_cast<size_t>(t)];
          score = scoring.scorer == KvScorer::replay ? std::max(score, a)
                                                     : score + contribution(scoring.scorer, a);
        }
      }
    }
    return scores;
  }

 private:
  static constexpr int64_t kResidual = 24;  // channels of the residual stream

  double residual_rms(int32_t p) const {
    double squares = 0;
    for (int64_t i = 0; i < kResidual; ++i) {
      const double x = residual_[static_cast<size_t>(p * kResidual + i)];
      squares += x * x;
    }
    return std::sqrt(squares / kResidual);
  }

  // Contribution of one query head with attention `a` to a token.
  double contribution(KvScorer scorer, double a) const {
    switch (scorer) {
      case KvScorer::squares:
      case KvScorer::replay_output:
        return a * a;
      default:
        return a / shape_.gqa_ratio;
    }
  }

  int64_t query_cols() const { return kv_cols() * shape_.gqa_ratio; }
  int64_t kv_cols() const { return int64_t{shape_.kv_heads} * shape_.head_dim; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)); }
  KvTiers tiers() const { return {0, static_cast<uint8_t>(shape_.policy.has_low_tier() ? 1 : 0)}; }

  void make_arena(const Device& device) {
    KvArenaShape shape{.formats = {shape_.policy.high},
                       .head_dim = shape_.head_dim,
                       .slots = 2 + shape_.others,
                       .layers = 1,
                       .kv_heads = shape_.kv_heads,
                       .context = shape_.tokens,
                       .token_scores = true,
                       .section_scores = shape_.section_alone ? shape_.section : 0,
                       .coded_residuals = shape_.coded_residuals};
    if (shape_.policy.has_low_tier()) {
      shape.formats.push_back(shape_.policy.low);
    }
    shape.page_bytes = KvPageLayout::make(shape_.policy.high, shape_.head_dim, 32).page_bytes;
    shape.pages = static_cast<int32_t>(shape.rows()) * (shape.row_pages() + 1);
    arena_ = std::make_unique<ReachedArena>(device, shape);
  }

  // The rows of a step: one token of each other sequence, then the sequence's own tokens.
  std::vector<float> step_rows(const std::vector<float>& all, int64_t cols, int32_t context,
                               int32_t count) const {
    std::vector<float> rows;
    for (int32_t other = 0; other <= shape_.others; ++other) {
      const bool own = other == shape_.others;
      const auto first = all.begin() + (own ? context : other) * cols;
      rows.insert(rows.end(), first, first + (own ? count : 1) * cols);
    }
    return rows;
  }

  void step(const Device& device, int32_t context, int32_t count) {
    const Backend& backend = *device.backend;
    std::vector<SequenceSpan> spans;
    std::vector<KvChunk> chunks;
    for (int32_t other = 0; other < shape_.others; ++other) {
      spans.push_back({2 + other, other, 1, steps_, tiers()});
      chunks.push_back({2 + other, steps_, 1, keys_.data() + other * kv_cols(),
                        values_.data() + other * kv_cols(), tiers()});
    }
    ++steps_;
    spans.push_back({1, shape_.others, count, context, tiers()});
    chunks.push_back({1, context, count, keys_.data() + context * kv_cols(),
                      values_.data() + context * kv_cols(), tiers()});
    store_step(device, **arena_, chunks, 0);
    // The dense groups of store_step are freed by now, so they are assembled again.
    DenseGroups dense = dense_of(spans.back());
    const int32_t tokens = shape_.others + count;
    const auto sequences = static_cast<int32_t>(std::ssize(spans));
    const std::vector<float> queries = step_rows(queries_, query_cols(), context, count);
    std::vector<float> out(queries.size());
    std::vector<float> log_sums(static_cast<size_t>(tokens * shape_.kv_heads * shape_.gqa_ratio));
    const int32_t query_heads = shape_.kv_heads * shape_.gqa_ratio;
    const StepLimits limits{tokens, sequences, shape_.tokens};
    std::vector<std::byte> scratch(
        static_cast<size_t>(backend.attention_scratch_bytes(limits, query_heads, shape_.head_dim)));
    const MatrixView<float> log_sum_rows{log_sums.data(), tokens, query_heads, query_heads};
    const std::vector<KvScoring> scorings(spans.size(), scoring_at(context));
    const int64_t weight_cols = attention_weight_row_floats(shape_.tokens, shape_.gqa_ratio);
    const int64_t max_rows = int64_t{sequences} * shape_.kv_heads;
    std::vector<float> weights(static_cast<size_t>(max_rows * weight_cols), NAN);
    const MatrixView<float> weight_rows{weights.data(),
                                        shape_.weights ? max_rows : max_rows - shape_.kv_heads,
                                        weight_cols, weight_cols};
    AttentionArgs args{.queries = {queries.data(), tokens, query_cols(), query_cols()},
                       .sequences = spans,
                       .pages = (*arena_)->view(),
                       .query_heads = query_heads,
                       .scale = scale(),
                       .dense = dense.bytes(),
                       .out = {out.data(), tokens, query_cols(), query_cols()},
                       .log_sums = log_sum_rows,
                       .scorings = scorings,
                       .weights = weight_rows,
                       .scratch = scratch};
    const std::vector<std::byte> plan = plan_step(device, limits, args);
    backend.attention(args, device.stream);
    const std::vector<float> residual = step_rows(residual_, kResidual, context, count);
    const std::vector<float> scored =
        shape_.blind && count == 1 ? std::vector<float>(queries.size(), NAN) : queries;
    backend.kv_score({.queries = {scored.data(), tokens, query_cols(), query_cols()},
                      .log_sums = log_sum_rows,
                      .sequences = spans,
                      .scorings = scorings,
                      .weights = weight_rows,
                      .residual = {residual.data(), tokens, kResidual, kResidual},
                      .pages = (*arena_)->view(),
                      .query_heads = query_heads,
                      .scale = scale(),
                      .dense = dense.bytes()},
                     device.stream);
    device.wait(device.stream);
  }

  // Returns: the scoring of a step that begins at `context`.
  KvScoring scoring_at(int32_t context) const {
    KvScoring scoring = scoring_of(shape_.policy, shape_.prompt);
    if (shape_.section > 0) {
      scoring.begin = shape_.prompt;
    }
    if (shape_.section_alone) {
      scoring.token_scores = context >= shape_.prompt;
      scoring.section = shape_.section;
    }
    return scoring;
  }

  // Returns: the groups of a span that close before its last one, as kv_store leaves them.
  DenseGroups dense_of(const SequenceSpan& span) const {
    const KvPageLayout& layout = (*arena_)->view().residual_layout;
    DenseGroups dense(dense_groups(span) * shape_.kv_heads * layout.page_bytes);
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
    for (int32_t i = 0; shape_.section_alone && i < shape_.section; ++i) {
      const KvTokenScore& token_score = pages.token_score_row(row)[i];
      scores[static_cast<size_t>(token_score.position)] = token_score.score;
    }
    if (shape_.section_alone) {
      return scores;
    }
    for (int32_t i = 0; i < counts.high + shape_.tokens % kKvGroup; ++i) {
      const KvTokenScore& token_score = pages.token_score_row(row)[i];
      scores[static_cast<size_t>(token_score.position)] = token_score.score;
    }
    for (int32_t j = 0; j < counts.low; ++j) {
      const KvTokenScore& token_score = pages.token_score_row(row)[pages.row_token_scores - 1 - j];
      scores[static_cast<size_t>(token_score.position)] = token_score.score;
    }
    return scores;
  }

  // Returns: key of position t as a query at position p reads it.
  // Requires: no compression.
  const std::vector<float>& key_at(int32_t head, int32_t t, int32_t p) const {
    const bool closed = t / kKvGroup < p / kKvGroup;
    std::vector<std::vector<float>>& keys = read_[closed ? 1 : 0];
    keys.resize(static_cast<size_t>(shape_.kv_heads * shape_.tokens));
    std::vector<float>& key = keys[static_cast<size_t>(head * shape_.tokens + t)];
    if (key.empty()) {
      key = decoded_key(head, t, closed);
    }
    return key;
  }
  std::vector<float> decoded_key(int32_t head, int32_t t, bool closed) const {
    const KvPagesView pages = (*arena_)->view();
    const int64_t at = t * kv_cols() + head * shape_.head_dim;
    std::vector<float> key(static_cast<size_t>(shape_.head_dim));
    std::vector<float> value(key.size());
    const KvPageLayout& high = pages.layouts[0];
    if (closed) {
      const int64_t row = pages.row_index(1, 0, head);
      decode_token(high, pages.page(pages.table(row)[t / high.capacity]), t % high.capacity,
                   key.data(), value.data());
    } else {
      std::vector<std::byte> page(static_cast<size_t>(pages.residual_layout.page_bytes));
      encode_token(pages.residual_layout, keys_.data() + at, values_.data() + at, page.data(), 0);
      decode_token(pages.residual_layout, page.data(), 0, key.data(), value.data());
    }
    return key;
  }

  std::vector<double> softmax(int32_t head, int32_t g, int32_t p) const {
    const float* query =
        queries_.data() + p * query_cols() + (head * shape_.gqa_ratio + g) * shape_.head_dim;
    std::vector<double> weights;
    double sum = 0;
    for (int32_t t = 0; t <= p; ++t) {
      const std::vector<float>& key = key_at(head, t, p);
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
  std::vector<float> residual_;  // [tokens, kResidual]
  std::unique_ptr<ReachedArena> arena_;
  // Keys as queries read them, by head and position: in the residual buffer, and in pages.
  mutable std::vector<std::vector<float>> read_[2];
  int32_t steps_ = 0;
};

inline KvPolicy scored(KvScorer scorer, int32_t score_window, bool generated, KvFormat high) {
  KvPolicy policy;
  policy.high = high;
  policy.low = high;
  policy.scorer = scorer;
  policy.score_window = score_window;
  policy.compress_generated = generated;
  policy.keep = KeepBudget{.amount = KvAmount::of_share(0.5f)};
  return policy;
}

inline bool serves(const Device& device, KvScorer scorer) {
  return !weighs_output(scorer) || device.backend->weighs_output;
}

// Returns: true if the device's attention leaves weights for kv_score.
inline bool leaves_attention_weights(const Device& device) {
  return device.name != "scalar";
}

// Checks that kv_score gives decoded tokens the same scores bit for bit in two ways: from
// attention's weights without queries, and by multiplying again.
inline void expect_same_bits_by_products(const Device& device, ScoreShape shape, uint32_t seed,
                                         const std::vector<int32_t>& chunks) {
  shape.blind = true;
  const auto left = ScoredSequence(shape, seed).run(device, chunks);
  shape.blind = false;
  shape.weights = false;
  EXPECT_EQ(ScoredSequence(shape, seed).run(device, chunks), left);
}

// Checks that tokens of the section have the same scores bit for bit if they alone have scores, in
// any chunks.
// Requires: shape.section > 0; a chunk ends with the prompt in each of `cuts`.
inline void expect_scores_of_the_section_alone(const Device& device, ScoreShape shape,
                                               uint32_t seed,
                                               const std::vector<std::vector<int32_t>>& cuts) {
  const auto all = ScoredSequence(shape, seed).run(device, cuts[0]);
  shape.section_alone = true;
  for (const std::vector<int32_t>& chunks : cuts) {
    const auto alone = ScoredSequence(shape, seed).run(device, chunks);
    for (size_t head = 0; head < all.size(); ++head) {
      for (int32_t t = 0; t < shape.prompt; ++t) {
        const bool in_section = t >= shape.prompt - shape.section;
        ASSERT_EQ(alone[head][static_cast<size_t>(t)],
                  in_section ? all[head][static_cast<size_t>(t)] : -1.0f)
            << "head " << head << " token " << t;
      }
    }
  }
}

}  // namespace tessera
