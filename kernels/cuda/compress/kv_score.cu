#include "kernels/check.h"
#include "kernels/cuda/compress/query_sums.h"
#include "kernels/cuda/compress/score_warp.h"
#include "kernels/cuda/ops.h"

namespace tessera::cuda {
namespace {

constexpr int32_t kThreads = kWarpsOfBlock * kWarp;

constexpr int32_t kZeroThreads = 256;
TESSERA_KERNEL(kZeroThreads) zero_sums_kernel(KvScoreArgs args) {
  const int64_t i = int64_t{block_x()} * kZeroThreads + thread();
  if (i < args.queries.rows * args.query_heads) {
    (&weight_sum(args, 0, 0))[i] = 0;
  }
}

template <int kDim, bool kSums>
TESSERA_KERNEL(kThreads, 4)
score_kernel(KvScoreArgs args, const SequenceSpan* sequences, const KvScoring* scorings) {
  const int32_t sequence = block_x() / args.pages.kv_heads;
  const SequenceSpan span = sequences[sequence];
  const KvScoring scoring = scorings[sequence];
  if (!scoring.token_scores || has_attention_weight_rows(args, span, sequence) ||
      (kSums && !has_own_softmax(scoring.scorer))) {
    return;
  }
  ScoreWarp<kDim, kSums>(args, span, scoring, block_x() % args.pages.kv_heads,
                         warp_memory<AnyWarpMemory<kDim, kProducts>>())
      .run(block_y() * kWarpsOfBlock + warp(), dense_groups_before(sequences, sequence));
}

// ---- decode queries, for which attention left scores; one thread for each token score

constexpr int32_t kFoldThreads = 256;

// Returns: address of the score that attention left for a token, for the first query head of the KV
// head.
TESSERA_DEVICE const float* score_left(const KvScoreArgs& args, const TokenScoreRow& row,
                                       int32_t token_score) {
  const auto tiles = [](int32_t tokens) { return (tokens + kKvGroup - 1) / kKvGroup; };
  const bool is_low = token_score >= row.left;
  const bool is_open = !is_low && token_score >= row.before;
  const int32_t first_tile = is_open  ? tiles(row.before) + tiles(row.low)
                             : is_low ? tiles(row.before)
                                      : 0;
  const int32_t place = token_score - (is_open ? row.before : is_low ? row.left : 0);
  const int64_t tile_floats = attention_weight_tile_floats(args.query_heads / args.pages.kv_heads);
  const int64_t end = (first_tile + place / kKvGroup + 1) * tile_floats;
  simt::check(end <= args.weights.cols);
  return args.weights.data + block_x() * args.weights.stride + end - tile_floats + place % kKvGroup;
}

// Contributions of the query heads of one KV head to one token's score.
struct FoldToken {
  const KvScoreArgs& args;
  const SequenceSpan& span;
  const KvScoring& scoring;
  const float* scores;    // those that attention left, a tile apart
  const float* log_sums;  // [heads]
  int32_t first_head;
  int32_t position;

  TESSERA_DEVICE float attention(int32_t head) const {
    return attention_of(scores[head * kAttentionTile], log_sums[head]);
  }
  TESSERA_DEVICE WeightSum& sum(int32_t head) const {
    return weight_sum(args, span.first_row, first_head + head);
  }
  TESSERA_DEVICE float weight(int32_t head) const {
    return own_weight(attention(head), scoring, args.layer, span.context, position);
  }
  TESSERA_DEVICE float contribution(int32_t head, float even) const {
    const float a =
        has_own_softmax(scoring.scorer) ? weight(head) / total_of(sum(head)) : attention(head);
    return contribution_of(a, scoring.scorer, even);
  }
};

// kSums: the first pass of a scorer with a softmax of its own.
template <bool kSums>
TESSERA_KERNEL(kFoldThreads)
fold_kernel(KvScoreArgs args, const SequenceSpan* sequences, const KvScoring* scorings) {
  const int32_t sequence = block_x() / args.pages.kv_heads;
  const int32_t kv_head = block_x() % args.pages.kv_heads;
  const SequenceSpan span = sequences[sequence];
  const KvScoring scoring = scorings[sequence];
  if (!scoring.token_scores || !has_attention_weight_rows(args, span, sequence) ||
      (kSums && !has_own_softmax(scoring.scorer))) {
    return;
  }
  const TokenScoreRow row = token_score_row(args.pages, span, scoring,
                                            args.pages.row_index(span.slot, args.layer, kv_head));
  const int32_t token_score = block_y() * kFoldThreads + thread();
  const bool is_there = token_score >= row.first && token_score < row.left + row.low;
  const bool is_fresh = row.by_section ? row.begins : token_score == row.fresh;
  const bool counts = scoring.includes(span.context);
  KvTokenScore& to = row.token_scores[!is_there ? 0
                                      : token_score < row.left
                                          ? token_score - row.first
                                          : row.row_token_scores - 1 - (token_score - row.left)];
  const int32_t fresh_position =
      row.by_section ? row.first_position + token_score - row.first : span.context;
  const int32_t heads = args.query_heads / args.pages.kv_heads;
  const FoldToken token{
      args,
      span,
      scoring,
      is_there && counts ? score_left(args, row, token_score) : nullptr,
      args.log_sums.data + span.first_row * args.log_sums.stride + kv_head * heads,
      kv_head * heads,
      is_fresh || !is_there ? fresh_position : to.position};
  if (kSums) {  // all lanes, for their sum
    for (int32_t head = 0; counts && head < heads; ++head) {
      add_weights(token.sum(head), is_there ? as_sum(token.weight(head)) : 0);
    }
    return;
  }
  if (!is_there || !(counts || is_fresh)) {
    return;
  }
  float score = is_fresh ? 0.0f : to.score;
  if (counts) {
    const float even = even_share(row.left + row.low);
    float received = 0;
    TESSERA_UNROLL_BY(4)
    for (int32_t head = 0; head < heads; ++head) {
      received = joined(scoring.scorer, received, token.contribution(head, even));
    }
    score = score_after_query(scoring, heads, score, received, span.context - token.position);
  }
  to.score = score;
  if (is_fresh) {
    to.position = fresh_position;
  }
}

// Checks the arguments. Returns: true if any sequence keeps token scores.
bool check_args(const KvScoreArgs& args) {
  const KvPagesView& pages = args.pages;
  TESSERA_CHECK(args.scorings.size() == args.sequences.size(), "kv_score: number of scorings");
  TESSERA_CHECK(pages.head_dim > 0 && pages.head_dim % 16 == 0 && pages.head_dim <= 128,
                "the CUDA backend serves head dimensions of a multiple of 16 up to 128");
  TESSERA_CHECK(args.query_heads > 0 && args.query_heads % pages.kv_heads == 0,
                "kv_score: query heads are a multiple of KV heads");
  TESSERA_CHECK(args.queries.cols == int64_t{args.query_heads} * pages.head_dim &&
                    args.log_sums.rows == args.queries.rows &&
                    args.log_sums.cols == args.query_heads,
                "kv_score: shapes of queries and log_sums");
  bool any = false;
  for (size_t i = 0; i < args.sequences.size(); ++i) {
    const SequenceSpan& span = args.sequences[i];
    if (!args.scorings[i].token_scores) {
      continue;
    }
    any = true;
    TESSERA_CHECK(has_room_for_scores(pages, span, args.scorings[i]),
                  "kv_score: too few token scores");
    TESSERA_CHECK(span.older_dense() == 0, "kv_score: dense newest tokens with token scores");
  }
  return any;
}

bool any_sparse(const KvScoreArgs& args) {
  for (const SequenceSpan& span : args.sequences) {
    for (const uint8_t tier : {span.tiers.high, span.tiers.low}) {
      if (args.pages.layouts[tier].format.is_sparse()) {
        return true;
      }
    }
  }
  return false;
}

template <bool kSums>
void start_fold(const KvScoreArgs& args, int32_t longest, Stream stream) {
  launch(stream,
         {.grid_x = static_cast<int32_t>(args.sequences.size()) * args.pages.kv_heads,
          .grid_y = static_cast<int32_t>(div_ceil(longest, kFoldThreads)),
          .threads = kFoldThreads},
         fold_kernel<kSums>, args, mirror(args.sequences, stream), mirror(args.scorings, stream));
}

template <int kDim, bool kSums>
void start(const KvScoreArgs& args, int32_t longest, Stream stream) {
  const int32_t tiles = longest / kKvGroup + 3;  // both tiers may end in a partly filled one
  launch(stream,
         {.grid_x = static_cast<int32_t>(args.sequences.size()) * args.pages.kv_heads,
          .grid_y = static_cast<int32_t>(div_ceil(tiles, kWarpsOfBlock)),
          .threads = kThreads,
          .shared_bytes = block_memory_bytes<AnyWarpMemory<kDim, kProducts>, AnyPart<kDim>>(
              kWarpsOfBlock, any_sparse(args))},
         score_kernel<kDim, kSums>, args, mirror(args.sequences, stream),
         mirror(args.scorings, stream));
}

// The sequences of a step with token scores, by the source of their scores.
struct ScoredSequences {
  bool left = false;   // attention left scores
  bool other = false;  // multiplied again
  bool own = false;    // a softmax of the scorer's own
  int32_t longest = 0;
};
ScoredSequences scored_sequences(const KvScoreArgs& args) {
  ScoredSequences all;
  for (size_t i = 0; i < args.sequences.size(); ++i) {
    const SequenceSpan& span = args.sequences[i];
    const bool left = has_attention_weight_rows(args, span, static_cast<int64_t>(i));
    const bool scored = args.scorings[i].token_scores;
    all.left = all.left || (left && scored);
    all.other = all.other || (!left && scored);
    all.own = all.own || (scored && has_own_softmax(args.scorings[i].scorer));
    all.longest = span.context + span.count > all.longest ? span.context + span.count : all.longest;
  }
  return all;
}

template <bool kSums>
void start_pass(const KvScoreArgs& args, const ScoredSequences& all, Stream stream) {
  if (all.left) {
    start_fold<kSums>(args, all.longest, stream);
  }
  if (all.other && args.pages.head_dim <= 64) {
    start<64, kSums>(args, all.longest, stream);
  } else if (all.other) {
    start<128, kSums>(args, all.longest, stream);
  }
}

}  // namespace

int64_t kv_score_scratch_bytes(const StepLimits& limits, int32_t query_heads) {
  return int64_t{limits.tokens} * query_heads * int64_t{sizeof(WeightSum)};
}

void kv_score(const KvScoreArgs& args, Stream stream) {
  const bool any_token_scores = check_args(args);
  add_query_sums(args, stream);
  if (!any_token_scores) {
    return;
  }
  const ScoredSequences all = scored_sequences(args);
  if (all.own) {
    const int64_t sums = args.queries.rows * args.query_heads;
    TESSERA_CHECK(sums * int64_t{sizeof(WeightSum)} <= std::ssize(args.scratch),
                  "kv_score: scratch is too small");
    launch(stream,
           {.grid_x = static_cast<int32_t>(div_ceil(sums, kZeroThreads)), .threads = kZeroThreads},
           zero_sums_kernel, args);
    start_pass<true>(args, all, stream);
  }
  start_pass<false>(args, all, stream);
}

}  // namespace tessera::cuda
