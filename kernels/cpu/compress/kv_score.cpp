#include <algorithm>
#include <limits>

#include "kernels/check.h"
#include "kernels/cpu/attention/limits.h"
#include "kernels/cpu/compress/ops.h"
#include "kernels/cpu/compress/tile_scores.h"
#include "kernels/cpu/thread_pool.h"

namespace tessera {

KvScoring scoring_of(const KvPolicy& policy, int32_t prompt_tokens) {
  KvScoring scoring{.marks = policy.needs_marks(), .scorer = policy.scorer};
  if (policy.is_lossy() && policy.scorer != KvScorer::none) {
    const bool all = policy.score_window == 0;
    scoring.begin = all ? 0 : std::max(0, prompt_tokens - policy.score_window);
    scoring.end =
        policy.score_generated ? std::numeric_limits<int32_t>::max() : prompt_tokens;
  }
  return scoring;
}

namespace {

constexpr float kLog2E = 1.44269504088896341f;
constexpr int32_t kTile = KvPageLayout::kKeyTile;
constexpr int32_t kMaxQueryRows = 64;  // queries x heads of a group that share an unpacked tile

// Consecutive tokens of one layout, and their marks: mark i is first_mark[i * mark_step].
struct TokenRun {
  const KvPageLayout* layout;
  const std::byte* page;
  int32_t begin;  // tokens of the page
  int32_t end;
  KvMark* first_mark;  // of token `begin`
  int32_t mark_step;
};

KeyTile key_tile(const KvPageLayout& layout, const std::byte* page, int32_t tile) {
  return {.keys = page + layout.keys_offset(tile),
          .scales = page + layout.key_scales_offset(tile),
          .zeros = page + layout.key_zeros_offset(tile),
          .bits = layout.format.key_bits,
          .head_dim = layout.head_dim};
}

// One sequence's row of one KV head.
class RowScoring {
 public:
  RowScoring(const ScoreKernels& kernels, const KvScoreArgs& args, size_t sequence,
             int64_t first_dense, int32_t kv_head)
      : kernels_(kernels),
        args_(args),
        span_(args.sequences[sequence]),
        scoring_(args.scorings[sequence]),
        kv_head_(kv_head),
        group_(args.query_heads / args.pages.kv_heads),
        row_(args.pages.row_index(span_.slot, args.layer, kv_head)),
        high_before_(args.pages.rows[row_].high -
                     (span_.closed_after() - span_.closed_before()) * kKvGroup),
        first_dense_(first_dense) {}

  void run() {
    make_marks();
    const int32_t begin = std::max(span_.context, scoring_.begin);
    const int32_t end = std::min(span_.context + span_.count, scoring_.end);
    for (int32_t query = begin; query < end;) {
      // Queries of one group see the same closed tokens.
      const int32_t group = query / kKvGroup;
      const int32_t stop = std::min({end, (group + 1) * kKvGroup, query + kMaxQueryRows / group_});
      prepare(query, stop);
      score(group, query, stop);
      query = stop;
    }
  }

 private:
  // The mark of a token that is new or in the group that was open before this step.
  KvMark& mark_of(int32_t position) const {
    return args_.pages.mark_row(
        row_)[high_before_ + position - span_.closed_before() * kKvGroup];
  }

  void make_marks() const {
    for (int32_t i = 0; i < span_.count; ++i) {
      mark_of(span_.context + i) = {.score = 0, .position = span_.context + i};
    }
  }

  // Queries at positions [begin, end), all of one group: over the high tier's tokens that they see, the
  // low tier's, and their own group up to themselves.
  void score(int32_t group, int32_t begin, int32_t end) {
    const KvPagesView& pages = args_.pages;
    const KvRow& counts = pages.rows[row_];
    const int32_t* table = pages.table(row_);
    KvMark* marks = pages.mark_row(row_);
    const int32_t high = high_before_ + (group - span_.closed_before()) * kKvGroup;
    const KvPageLayout& high_layout = pages.layouts[span_.tiers.high];
    for (int32_t i = 0; i < high; i += high_layout.capacity) {
      score_run({&high_layout, page(table[i / high_layout.capacity]), 0,
                 std::min(high_layout.capacity, high - i), marks + i, 1},
                begin, end);
    }
    const KvPageLayout& low_layout = pages.layouts[span_.tiers.low];
    for (int32_t j = 0; j < counts.low; j += low_layout.capacity) {
      score_run({&low_layout, page(table[pages.row_pages - 1 - j / low_layout.capacity]), 0,
                 std::min(low_layout.capacity, counts.low - j), marks + pages.row_marks - 1 - j,
                 -1},
                begin, end);
    }
    const std::byte* dense =
        group == span_.last_group()
            ? pages.window(row_)
            : args_.dense.data() + ((first_dense_ + group - span_.closed_before()) *
                                        pages.kv_heads + kv_head_) *
                                       pages.window_layout.page_bytes;
    for (int32_t query = begin; query < end; ++query) {
      score_run({&pages.window_layout, dense, 0, query % kKvGroup + 1, &mark_of(group * kKvGroup), 1},
                query, query + 1);
    }
  }

  const std::byte* page(int32_t page_id) const {
    TESSERA_CHECK(page_id >= 0, "kv_score: the row has no page for a token");
    return args_.pages.page(page_id);
  }

  void score_run(const TokenRun& run, int32_t begin, int32_t end) {
    alignas(64) float keys[kMaxHeadDim * kTile];
    for (int32_t token = run.begin; token < run.end; token += kTile) {
      const KeyTile tile = key_tile(*run.layout, run.page, token / kTile);
      kernels_.unpack(tile, keys);
      const int32_t tokens = std::min(kTile, run.end - token);
      for (int32_t query = begin; query < end; ++query) {
        alignas(64) float sums[kTile] = {};
        kernels_.add(tile, keys, heads_of(query), sums);
        const float share = scoring_.scorer == KvScorer::squares
                                ? 1.0f
                                : 1.0f / static_cast<float>(group_);
        for (int32_t i = 0; i < tokens; ++i) {
          run.first_mark[(token + i - run.begin) * run.mark_step].score += share * sums[i];
        }
      }
    }
  }

  // The group's heads of queries [begin, end), scaled so that the softmax is one of powers of 2.
  void prepare(int32_t begin, int32_t end) {
    const int32_t head_dim = args_.pages.head_dim;
    prepared_ = begin;
    for (int32_t i = 0; i < (end - begin) * group_; ++i) {
      const int64_t row = span_.first_row + begin + i / group_ - span_.context;
      const int64_t head = int64_t{kv_head_} * group_ + i % group_;
      const float* in = args_.queries.row(row).data() + head * head_dim;
      float* out = floats_ + i * head_dim;
      float sum = 0;
      for (int32_t channel = 0; channel < head_dim; ++channel) {
        out[channel] = in[channel] * (args_.scale * kLog2E);
        sum += out[channel];
      }
      sums_[i] = sum;
      log2_sums_[i] = args_.log_sums.row(row)[static_cast<size_t>(head)] * kLog2E;
    }
  }

  ScoreKernels::Queries heads_of(int32_t query) const {
    const int32_t first = (query - prepared_) * group_;
    return {.floats = floats_ + first * args_.pages.head_dim,
            .sums = sums_ + first,
            .log2_sums = log2_sums_ + first,
            .heads = group_,
            .stride = args_.pages.head_dim,
            .squares = scoring_.scorer == KvScorer::squares};
  }

  const ScoreKernels& kernels_;
  const KvScoreArgs& args_;
  const SequenceSpan& span_;
  const KvScoring& scoring_;
  const int32_t kv_head_;
  const int32_t group_;  // query heads of the KV head
  const int64_t row_;
  const int32_t high_before_;  // high tokens before this step
  const int64_t first_dense_;
  int32_t prepared_ = 0;  // the first of the queries below
  float sums_[kMaxQueryRows];
  float log2_sums_[kMaxQueryRows];
  alignas(64) float floats_[kMaxQueryRows * kMaxHeadDim];
};

void check(const KvScoreArgs& args) {
  const KvPagesView& pages = args.pages;
  TESSERA_CHECK(args.scorings.size() == args.sequences.size(), "kv_score: a scoring for each");
  TESSERA_CHECK(args.query_heads % pages.kv_heads == 0 &&
                    args.query_heads / pages.kv_heads <= kMaxQueryRows,
                "kv_score: query heads are a multiple of KV heads, at most 64 for one");
  TESSERA_CHECK(pages.head_dim > 0 && pages.head_dim <= kMaxHeadDim,
                "the CPU backend serves head dimensions up to 256");
  TESSERA_CHECK(args.queries.cols == int64_t{args.query_heads} * pages.head_dim,
                "kv_score: columns of queries");
  TESSERA_CHECK(args.log_sums.rows == args.queries.rows && args.log_sums.cols == args.query_heads,
                "kv_score: shape of log_sums");
  for (size_t i = 0; i < args.sequences.size(); ++i) {
    TESSERA_CHECK(!args.scorings[i].marks || pages.marks != nullptr, "kv_score: there are no marks");
    TESSERA_CHECK(!args.scorings[i].marks || args.sequences[i].context +
                                                     args.sequences[i].count <
                                                 pages.row_marks,
                  "kv_score: too few marks");
  }
}

void score(const ScoreKernels& kernels, const KvScoreArgs& args, Stream stream) {
  if (std::none_of(args.scorings.begin(), args.scorings.end(),
                   [](const KvScoring& scoring) { return scoring.marks; })) {
    return;
  }
  check(args);
  const int64_t heads = args.pages.kv_heads;
  ThreadPool::of(stream).parallel_for(
      std::ssize(args.sequences) * heads, 1, [&](int64_t item, int64_t, int) {
        const auto sequence = static_cast<size_t>(item / heads);
        if (!args.scorings[sequence].marks) {
          return;
        }
        int64_t first_dense = 0;
        for (const SequenceSpan& earlier : args.sequences.first(sequence)) {
          first_dense += dense_groups(earlier);
        }
        RowScoring(kernels, args, sequence, first_dense, static_cast<int32_t>(item % heads)).run();
      });
}

}  // namespace

namespace scalar {
void kv_score(const KvScoreArgs& args, Stream stream) { score(kScoreKernels, args, stream); }
}  // namespace scalar
namespace avx2 {
void kv_score(const KvScoreArgs& args, Stream stream) { score(kScoreKernels, args, stream); }
}  // namespace avx2
namespace avx512 {
void kv_score(const KvScoreArgs& args, Stream stream) { score(kScoreKernels, args, stream); }
}  // namespace avx512

}  // namespace tessera
