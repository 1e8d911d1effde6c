#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "kernels/cpu/attention/row_tokens.h"
#include "kernels/cpu/threads/thread_pool.h"

namespace tessera {

inline constexpr float kLog2OfE = 1.44269504088896341f;

// Token scores of one (sequence, KV head) in a step, and the queries of the step that count.
// Requires: `args` outlives this.
class RowScores {
 public:
  RowScores(const KvScoreArgs& args, size_t sequence, int32_t kv_head)
      : pages_(args.pages),
        span_(args.sequences[sequence]),
        scoring_(args.scorings[sequence]),
        row_(pages_.row_index(span_.slot, args.layer, kv_head)),
        log_sums_(args.log_sums),
        residual_(args.residual),
        kv_head_(kv_head),
        heads_(args.query_heads / pages_.kv_heads),
        section_first_(scoring_.section == 0
                           ? 0
                           : pages_.rows[row_].high - scoring_.section -
                                 (span_.closed_after() * kKvGroup - scoring_.begin)) {}

  int32_t heads() const { return heads_; }
  // Returns: the logarithm of the number by which a query head divides its exponentials. It is the
  // softmax denominator that attention left, times the scorer's divisor of attention.
  // position: of a query of the step. head: in [0, heads()).
  float log_divisor(int32_t position, int32_t head) const {
    const int64_t row = span_.first_row + position - span_.context;
    const float log_sum = log_sums_.row(row)[static_cast<size_t>(kv_head_ * heads_ + head)];
    return weighs_output(scoring_.scorer) ? log_sum + log_rms(residual_.row(row)) : log_sum;
  }

  // Initialises the scores of the tokens that have received no attention yet. These are the new
  // tokens, or those of a section before the first query of its replay.
  void make_token_scores() const {
    if (by_section()) {
      for (int32_t i = 0; span_.context == scoring_.begin && i < scoring_.section; ++i) {
        high_token_score(section_first_ + i) = {.score = 0,
                                                .position = scoring_.begin - scoring_.section + i};
      }
      return;
    }
    for (int32_t position = span_.context; position < span_.context + span_.count; ++position) {
      token_score_of(position) = {.score = 0, .position = position};
    }
  }

  // Positions of the queries that count: [begin, end).
  int32_t begin() const { return std::max(span_.context, scoring_.begin); }
  int32_t end() const { return std::min(span_.context + span_.count, scoring_.end); }

  const KvScoring& scoring() const { return scoring_; }

  // True: only the section before the scored queries has scores. Its tokens are in pages, at places
  // [section_first(), section_first() + scoring().section) of the high tier.
  bool by_section() const { return scoring_.section > 0; }
  int32_t section_first() const { return section_first_; }

  // Scores of closed tokens by place, and of a token by position. That token is new, or in the
  // group that was open before the step.
  KvTokenScore& high_token_score(int32_t place) const {
    return pages_.token_score_row(row_)[place - section_first_];
  }
  KvTokenScore& low_token_score(int32_t place) const {
    return pages_.token_score_row(row_)[pages_.row_token_scores - 1 - place];
  }
  KvTokenScore& token_score_of(int32_t position) const {
    const int32_t high_before =
        pages_.rows[row_].high - (span_.closed_after() - span_.closed_before()) * kKvGroup;
    return high_token_score(high_before + position - span_.closed_before() * kKvGroup);
  }

 private:
  // Returns: the logarithm of the root mean square. Every instruction set sums in this order.
  static float log_rms(std::span<const float> row) {
    double squares = 0;
    for (const float x : row) {
      squares += double{x} * x;
    }
    constexpr double kLeast = 1e-12;  // a row of zeros divides by a small number
    return static_cast<float>(0.5 * std::log(squares / static_cast<double>(row.size()) + kLeast));
  }

  const KvPagesView& pages_;
  const SequenceSpan& span_;
  const KvScoring& scoring_;
  int64_t row_;
  MatrixView<const float> log_sums_;
  MatrixView<const float> residual_;
  int32_t kv_head_;
  int32_t heads_;          // query heads per KV head
  int32_t section_first_;  // 0 without a section
};

// Arguments with which attention reads the same tokens.
inline AttentionArgs attention_args(const KvScoreArgs& args) {
  AttentionArgs attention;
  attention.queries = args.queries;
  attention.sequences = args.sequences;
  attention.pages = args.pages;
  attention.layer = args.layer;
  attention.query_heads = args.query_heads;
  attention.scale = args.scale;
  attention.dense = args.dense;
  return attention;
}

// Returns: number of groups in args.dense before those of `sequence`.
inline int64_t first_dense(const KvScoreArgs& args, size_t sequence) {
  int64_t groups = 0;
  for (const SequenceSpan& earlier : args.sequences.first(sequence)) {
    groups += dense_groups(earlier);
  }
  return groups;
}

// Aborts unless the op can serve its arguments. Shared by all instruction sets.
void check_score(const KvScoreArgs& args);

// Calls score(sequence, kv_head, part) on the stream's threads, for every row whose sequence needs
// token scores and for each of `parts`.
template <class Score>
void each_scored_row(const KvScoreArgs& args, int64_t parts, Stream stream, Score&& score) {
  if (std::none_of(args.scorings.begin(), args.scorings.end(),
                   [](const KvScoring& scoring) { return scoring.token_scores; })) {
    return;
  }
  check_score(args);
  const int64_t heads = args.pages.kv_heads;
  ThreadPool::of(stream).parallel_for(
      std::ssize(args.sequences) * heads * parts, 1, [&](int64_t item, int64_t, int) {
        const int64_t row = item / parts;
        const auto sequence = static_cast<size_t>(row / heads);
        if (args.scorings[sequence].token_scores) {
          score(sequence, static_cast<int32_t>(row % heads), item % parts);
        }
      });
}

}  // namespace tessera
