#include "base/check.h"
#include "kernels/cuda/compress/query_sums.h"
#include "kernels/cuda/compress/score_warp.h"
#include "kernels/cuda/ops/cuda_ops.h"

namespace tessera::cuda {
namespace {

constexpr int32_t kThreads = kWarpsOfBlock * kWarp;

template <int kDim>
TESSERA_KERNEL(kThreads, 4)
score_kernel(KvScoreArgs args, const SequenceSpan* sequences, const KvScoring* scorings) {
  const int32_t sequence = block_x() / args.pages.kv_heads;
  const SequenceSpan span = sequences[sequence];
  const KvScoring scoring = scorings[sequence];
  if (!scoring.token_scores || has_attention_weight_rows(args, span, sequence)) {
    return;
  }
  ScoreWarp<kDim>(args, span, scoring, block_x() % args.pages.kv_heads,
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

TESSERA_KERNEL(kFoldThreads)
fold_kernel(KvScoreArgs args, const SequenceSpan* sequences, const KvScoring* scorings) {
  const int32_t sequence = block_x() / args.pages.kv_heads;
  const int32_t kv_head = block_x() % args.pages.kv_heads;
  const SequenceSpan span = sequences[sequence];
  const KvScoring scoring = scorings[sequence];
  if (!scoring.token_scores || !has_attention_weight_rows(args, span, sequence)) {
    return;
  }
  const TokenScoreRow row = token_score_row(args.pages, span, scoring,
                                            args.pages.row_index(span.slot, args.layer, kv_head));
  const int32_t token_score = block_y() * kFoldThreads + thread();
  const bool is_there = token_score >= row.first && token_score < row.left + row.low;
  const bool is_fresh = row.by_section ? row.begins : token_score == row.fresh;
  const bool counts = scoring.includes(span.context);
  if (!is_there || !(counts || is_fresh)) {
    return;
  }
  KvTokenScore& to = row.token_scores[token_score < row.left
                                          ? token_score - row.first
                                          : row.row_token_scores - 1 - (token_score - row.left)];
  float score = is_fresh ? 0.0f : to.score;
  if (counts) {
    const int32_t heads = args.query_heads / args.pages.kv_heads;
    const float* left = score_left(args, row, token_score);
    const float* log_sums =
        args.log_sums.data + span.first_row * args.log_sums.stride + kv_head * heads;
    float received = 0;
    TESSERA_UNROLL_BY(4)
    for (int32_t head = 0; head < heads; ++head) {
      const float a = attention_of(left[head * kAttentionTile], log_sums[head]);
      received = joined(scoring.scorer, received, contribution_of(a, scoring.scorer));
    }
    score = score_after_query(scoring.scorer, heads, score, received);
  }
  to.score = score;
  if (is_fresh) {
    to.position = row.by_section ? row.first_position + token_score - row.first : span.context;
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

void start_fold(const KvScoreArgs& args, int32_t longest, Stream stream) {
  launch(stream,
         {.grid_x = static_cast<int32_t>(args.sequences.size()) * args.pages.kv_heads,
          .grid_y = static_cast<int32_t>(div_ceil(longest, kFoldThreads)),
          .threads = kFoldThreads},
         fold_kernel, args, mirror(args.sequences, stream), mirror(args.scorings, stream));
}

template <int kDim>
void start(const KvScoreArgs& args, int32_t longest, Stream stream) {
  const int32_t tiles = longest / kKvGroup + 3;  // both tiers may end in a partly filled one
  launch(stream,
         {.grid_x = static_cast<int32_t>(args.sequences.size()) * args.pages.kv_heads,
          .grid_y = static_cast<int32_t>(div_ceil(tiles, kWarpsOfBlock)),
          .threads = kThreads,
          .shared_bytes = block_memory_bytes<AnyWarpMemory<kDim, kProducts>, AnyPart<kDim>>(
              kWarpsOfBlock, any_sparse(args))},
         score_kernel<kDim>, args, mirror(args.sequences, stream), mirror(args.scorings, stream));
}

// The sequences of a step with token scores, by the source of their scores.
struct ScoredSequences {
  bool left = false;   // attention left scores
  bool other = false;  // multiplied again
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
    all.longest = span.context + span.count > all.longest ? span.context + span.count : all.longest;
  }
  return all;
}

}  // namespace

void kv_score(const KvScoreArgs& args, Stream stream) {
  const bool any_token_scores = check_args(args);
  add_query_sums(args, stream);
  if (!any_token_scores) {
    return;
  }
  const ScoredSequences all = scored_sequences(args);
  if (all.left) {
    start_fold(args, all.longest, stream);
  }
  if (all.other && args.pages.head_dim <= 64) {
    start<64>(args, all.longest, stream);
  } else if (all.other) {
    start<128>(args, all.longest, stream);
  }
}

}  // namespace tessera::cuda
