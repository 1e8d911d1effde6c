#include "kernels/check.h"
#include "kernels/cuda/attention/scores.h"
#include "kernels/cuda/attention/work.h"
#include "kernels/cuda/ops.h"

namespace tessera::cuda {
namespace {

using namespace simt;

constexpr int32_t kThreads = kWarpsOfBlock * kWarp;
constexpr int32_t kProducts = 1;  // at once, of kPairsOfProduct pairs each
constexpr int32_t kPairs = kPairsOfProduct * kProducts;

// Token scores of one (sequence, KV head). Those at the left end belong to the high tier, followed
// by the groups that hold the step's tokens. Those of the low tier are at the right end.
struct TokenScoreRow {
  KvTokenScore* token_scores;
  int32_t row_token_scores;
  int32_t before;  // high tokens before the step
  int32_t fresh;   // place of the step's first token
  int32_t left;    // token scores at the left end
  int32_t low;

  TESSERA_DEVICE int32_t left_tiles() const { return (left + kKvGroup - 1) / kKvGroup; }
  TESSERA_DEVICE int32_t tiles() const { return left_tiles() + (low + kKvGroup - 1) / kKvGroup; }
};
TESSERA_DEVICE TokenScoreRow token_score_row(const KvPagesView& pages, const SequenceSpan& span,
                                             int64_t row) {
  const KvRow counts = pages.rows[row];
  const int32_t before = counts.high - (span.closed_after() - span.closed_before()) * kKvGroup;
  const int32_t fresh = before + span.context - span.closed_before() * kKvGroup;
  return {pages.token_score_row(row),
          pages.row_token_scores,
          before,
          fresh,
          fresh + span.count,
          counts.low};
}

// One float as the vector of a scorer. No product is fused with the addition behind it. So token
// scores have the same bits if scores are computed here and if attention left them.
struct RoundedFloat {
  float value;

  TESSERA_BOTH static RoundedFloat fma(RoundedFloat a, RoundedFloat b, RoundedFloat c) {
    return {c.value + ::fmaf(a.value, b.value, 0.0f)};
  }
  TESSERA_BOTH static RoundedFloat at_least(RoundedFloat a, RoundedFloat b) {
    return {a.value >= b.value ? 1.0f : 0.0f};
  }
  friend TESSERA_BOTH RoundedFloat operator+(RoundedFloat a, RoundedFloat b) {
    return {a.value + b.value};
  }
  friend TESSERA_BOTH RoundedFloat operator*(RoundedFloat a, RoundedFloat b) {
    return {::fmaf(a.value, b.value, 0.0f)};
  }
};

// Returns: contribution of one query head to a token's score, by their attention score.
// even: 1 / (number of tokens that the query attends to).
TESSERA_DEVICE float received_by(float score, float log_sum, KvScorer scorer, float even) {
  const RoundedFloat received{exp2(fma(-kLog2E, log_sum, score))};
  return with_scorer(scorer, [&](auto type) {
    return decltype(type)::add_head(RoundedFloat{0}, received, RoundedFloat{1}, RoundedFloat{even})
        .value;
  });
}

// Returns: a token's score after one query. received: the contributions of all heads. `heads`:
// gqa_ratio. age: positions from the token to the query.
TESSERA_DEVICE float score_after_query(const KvScoring& scoring, int32_t heads, float score,
                                       float received, int32_t age) {
  return with_scorer(scoring.scorer, [&](auto type) {
    using Scorer = decltype(type);
    if constexpr (Scorer::kHasState) {
      return Scorer::update(score, received, age);
    } else {
      return fma(Scorer::share(heads), received, scoring.decay * score);
    }
  });
}

// Returns: the even share of the attention of a query that sees `tokens`.
TESSERA_DEVICE float even_share(int32_t tokens) {
  return 1.0f / static_cast<float>(tokens);
}

// ---- queries whose scores are computed again: those of prompts, and those for which attention had
// no room to leave scores

// One warp updates 64 token scores. It takes the counting queries in order of position, one block
// of pairs at a time. A query reads the tokens of its own group unquantised and all others from
// pages. For one query, a token is therefore in one of two tiles of 64: the pages' tile or the
// query's own group. The two tiles are offset against each other if a tier does not end at a tile.
template <int kDim>
class ScoreWarp {
 public:
  using Memory = WarpMemory<kDim, kProducts>;

  TESSERA_DEVICE ScoreWarp(const KvScoreArgs& args, const SequenceSpan& span,
                           const KvScoring& scoring, int32_t kv_head, Memory& memory)
      : args_(args),
        span_(span),
        rows_{args.pages, args.layer, args.dense.data()},
        row_(token_score_row(args.pages, span,
                             args.pages.row_index(span.slot, args.layer, kv_head))),
        kv_head_(kv_head),
        heads_(args.query_heads / args.pages.kv_heads),
        scoring_(scoring),
        begin_(span.context > scoring.begin ? span.context : scoring.begin),
        end_(span.context + span.count < scoring.end ? span.context + span.count : scoring.end),
        memory_(memory) {}

  TESSERA_DEVICE void run(int32_t tile, int32_t first_dense) {
    if (tile >= row_.tiles()) {
      return;
    }
    is_left_ = tile < row_.left_tiles();
    first_ = kKvGroup * (is_left_ ? tile : tile - row_.left_tiles());
    load();
    if (begin_ < end_) {
      const PairBlocks blocks{begin_, end_ - begin_, heads_, kPairs};
      for (int32_t i = 0; i < blocks.blocks(); ++i) {
        score(blocks.block(i), first_dense);
      }
    }
    store();
  }

 private:
  static constexpr int32_t kOwn = kKvGroup / kWarp;  // token scores of a lane

  TESSERA_DEVICE int32_t own(int32_t i) const { return i * kWarp + lane(); }  // in the tile
  TESSERA_DEVICE bool is_there(int32_t i) const {
    return first_ + own(i) < (is_left_ ? row_.left : row_.low);
  }
  TESSERA_DEVICE KvTokenScore& token_score(int32_t i) const {
    const int32_t place = first_ + own(i);
    return row_.token_scores[is_left_ ? place : row_.row_token_scores - 1 - place];
  }
  TESSERA_DEVICE bool is_fresh(int32_t i) const {
    return is_left_ && first_ + own(i) >= row_.fresh;
  }

  TESSERA_DEVICE int32_t token_position(int32_t i) const {
    return is_fresh(i) ? span_.context + first_ + own(i) - row_.fresh : token_score(i).position;
  }

  TESSERA_DEVICE void load() {
    for (int32_t i = 0; i < kOwn; ++i) {
      scores_[i] = is_there(i) && !is_fresh(i) ? token_score(i).score : 0.0f;
      received_[i] = 0;
    }
  }
  TESSERA_DEVICE void store() const {
    for (int32_t i = 0; i < kOwn; ++i) {
      if (is_there(i)) {
        token_score(i).score = scores_[i];
        if (is_fresh(i)) {
          token_score(i).position = token_position(i);
        }
      }
    }
  }

  TESSERA_DEVICE int32_t position(const PairBlock& block, int32_t pair) const {
    return begin_ + (block.first_pair + pair) / heads_;
  }
  TESSERA_DEVICE int64_t batch_row(const PairBlock& block, int32_t pair) const {
    return int64_t{span_.first_row} + position(block, pair) - span_.context;
  }
  TESSERA_DEVICE int32_t head(const PairBlock& block, int32_t pair) const {
    return kv_head_ * heads_ + (block.first_pair + pair) % heads_;
  }

  TESSERA_DEVICE void score(const PairBlock& block, int32_t first_dense) {
    const RowTokens tokens = rows_.tokens(span_, kv_head_, first_dense, block.group);
    const auto query = [&](int32_t pair) {
      return args_.queries.data + batch_row(block, pair) * args_.queries.stride +
             int64_t{head(block, pair)} * args_.pages.head_dim;
    };
    const int32_t of_group = row_.before + (block.group - span_.closed_before()) * kKvGroup;
    const int32_t in_pages = (is_left_ ? tokens.high : tokens.low) - first_;
    const bool reads_group =
        is_left_ && first_ < of_group + kKvGroup && of_group < first_ + kKvGroup;
    if (in_pages <= 0 && !reads_group) {
      return;
    }
    sync_warp();  // the previous block has been read
    const Queries<kProducts> queries =
        load_queries(memory_, block.pairs, args_.pages.head_dim, args_.scale * kLog2E, query);
    if (in_pages > 0) {
      const Tile tile{&args_.pages.layouts[is_left_ ? span_.tiers.high : span_.tiers.low], 0,
                      in_pages < kKvGroup ? in_pages : kKvGroup, false};
      weigh(block, tokens, tile, queries, query);
      pay(block, 0, tile.end);
    }
    if (reads_group) {
      const Tile tile{&args_.pages.residual_layout, 0,
                      position(block, block.pairs - 1) % kKvGroup + 1, true};
      weigh(block, tokens, tile, queries, query);
      pay(block, of_group - first_, tile.end);
    }
  }

  // Writes the attention that the tile's tokens receive from each pair of the block to the warp's
  // memory.
  template <class QueryAt>
  TESSERA_DEVICE void weigh(const PairBlock& block, const RowTokens& tokens, const Tile& tile,
                            const Queries<kProducts>& queries, const QueryAt& query) {
    sync_warp();
    if (lane() < Tile::kPlaces) {
      memory_.places[lane()] = tile.place(args_.pages, tokens, is_left_, first_ / kKvGroup, lane());
    }
    sync_warp();
    float scores[kProducts][8];
    tile_scores(memory_, queries, tile, block.pairs, args_.scale * kLog2E, query, scores);
    TESSERA_UNROLL
    for (int32_t product = 0; product < kProducts; ++product) {
      const int32_t pair = kPairsOfProduct * product + lane() % 4;
      if (pair < block.pairs) {
        const int32_t in_group = position(block, pair) % kKvGroup + 1;
        const int32_t seen = tile.is_dense ? in_group : tile.end;
        const float even = even_share(tokens.high + tokens.low + in_group);
        const float log_sum =
            args_.log_sums.data[batch_row(block, pair) * args_.log_sums.stride + head(block, pair)];
        TESSERA_UNROLL
        for (int32_t i = 0; i < 8; ++i) {
          const int32_t token = token_of_score(tile.layout->format.is_codes(), i);
          received_of_pair(pair)[token] =
              token < seen ? received_by(scores[product][i], log_sum, scoring_.scorer, even) : 0.0f;
        }
      }
    }
    sync_warp();
  }
  TESSERA_DEVICE float* received_of_pair(int32_t pair) const {  // [kKvGroup]
    static_assert(sizeof(Memory::weights) >= kPairs * kKvGroup * sizeof(float));
    return reinterpret_cast<float*>(memory_.weights) + pair * kKvGroup;
  }

  // Adds it to the lane's token scores, query by query. `shift`: place of the tile's first token
  // among the warp's token scores. The heads of a query may be in two blocks.
  TESSERA_DEVICE void pay(const PairBlock& block, int32_t shift, int32_t tokens) {
    for (int32_t i = 0; i < kOwn; ++i) {
      const int32_t token = own(i) - shift;
      if (token < 0 || token >= tokens || !is_there(i)) {
        continue;
      }
      for (int32_t pair = 0; pair < block.pairs; ++pair) {
        received_[i] += received_of_pair(pair)[token];
        if ((block.first_pair + pair) % heads_ == heads_ - 1) {
          scores_[i] = score_after_query(scoring_, heads_, scores_[i], received_[i],
                                         position(block, pair) - token_position(i));
          received_[i] = 0;
        }
      }
    }
  }

  const KvScoreArgs& args_;
  const SequenceSpan& span_;
  const StepRows rows_;
  const TokenScoreRow row_;
  const int32_t kv_head_;
  const int32_t heads_;  // gqa_ratio
  const KvScoring scoring_;
  const int32_t begin_;  // positions of the counting queries
  const int32_t end_;
  Memory& memory_;
  bool is_left_ = true;
  int32_t first_ = 0;  // place of the warp's first token score
  float scores_[kOwn] = {};
  float received_[kOwn] = {};  // from the current query's heads so far
};

template <int kDim>
TESSERA_KERNEL(kThreads, 4)
score_kernel(KvScoreArgs args, const SequenceSpan* sequences, const KvScoring* scorings) {
  const int32_t sequence = block_y() / args.pages.kv_heads;
  const SequenceSpan span = sequences[sequence];
  const KvScoring scoring = scorings[sequence];
  if (!scoring.token_scores || has_attention_weight_rows(args, span, sequence)) {
    return;
  }
  ScoreWarp<kDim>(args, span, scoring, block_y() % args.pages.kv_heads,
                  warp_memory<kDim, kProducts>())
      .run(block_x() * kWarpsOfBlock + warp(), dense_groups_before(sequences, sequence));
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
  return args.weights.data + block_y() * args.weights.stride + end - tile_floats + place % kKvGroup;
}

TESSERA_KERNEL(kFoldThreads)
fold_kernel(KvScoreArgs args, const SequenceSpan* sequences, const KvScoring* scorings) {
  const int32_t sequence = block_y() / args.pages.kv_heads;
  const int32_t kv_head = block_y() % args.pages.kv_heads;
  const SequenceSpan span = sequences[sequence];
  const KvScoring scoring = scorings[sequence];
  if (!scoring.token_scores || !has_attention_weight_rows(args, span, sequence)) {
    return;
  }
  const TokenScoreRow row =
      token_score_row(args.pages, span, args.pages.row_index(span.slot, args.layer, kv_head));
  const int32_t token_score = block_x() * kFoldThreads + thread();
  const bool is_fresh = token_score == row.fresh;
  const bool counts = scoring.includes(span.context);
  if (token_score >= row.left + row.low || !(counts || is_fresh)) {
    return;
  }
  KvTokenScore& to = row.token_scores[token_score < row.left
                                          ? token_score
                                          : row.row_token_scores - 1 - (token_score - row.left)];
  float score = is_fresh ? 0.0f : to.score;
  if (counts) {
    const int32_t heads = args.query_heads / args.pages.kv_heads;
    const float* scores = score_left(args, row, token_score);
    const float* log_sums =
        args.log_sums.data + span.first_row * args.log_sums.stride + kv_head * heads;
    const float even = even_share(row.left + row.low);
    float received = 0;
    TESSERA_UNROLL_BY(4)
    for (int32_t head = 0; head < heads; ++head) {
      received += received_by(scores[head * kAttentionTile], log_sums[head], scoring.scorer, even);
    }
    score = score_after_query(scoring, heads, score, received,
                              is_fresh ? 0 : span.context - to.position);
  }
  to.score = score;
  if (is_fresh) {
    to.position = span.context;
  }
}

// ---- sums of queries, as in kernels/cpu/compress/query_sums.h. A channel's sum runs over
// positions, then over query heads. Of a prompt only the newest closed group and the open one are
// added. One block for each (sequence, KV head), one thread for each channel.
constexpr int32_t kSumThreads = 128;
TESSERA_KERNEL(kSumThreads)
query_sums_kernel(KvScoreArgs args, const SequenceSpan* sequences, const KvScoring* scorings) {
  const KvPagesView& pages = args.pages;
  const SequenceSpan span = sequences[block_y()];
  const int32_t channel = thread();
  if (!scorings[block_y()].query_sums || channel >= pages.head_dim) {
    return;
  }
  const int64_t row = pages.row_index(span.slot, args.layer, block_x());
  const int32_t heads = args.query_heads / pages.kv_heads;
  const int32_t newest = (span.last_group() - 1) * kKvGroup;
  for (int32_t position = span.context > newest ? span.context : newest;
       position < span.context + span.count; ++position) {
    float& kept = pages.query_sum(row, position / kKvGroup)[channel];
    float sum = position % kKvGroup == 0 ? 0.0f : kept;
    const float* query = args.queries.data +
                         (span.first_row + position - span.context) * args.queries.stride +
                         int64_t{block_x()} * heads * pages.head_dim + channel;
    for (int32_t head = 0; head < heads; ++head, query += pages.head_dim) {
      sum += abs(*query);
    }
    kept = sum;
  }
}

void add_query_sums(const KvScoreArgs& args, Stream stream) {
  bool any = false;
  for (const KvScoring& scoring : args.scorings) {
    any = any || scoring.query_sums;
  }
  if (any) {
    TESSERA_CHECK(args.pages.query_sums != nullptr, "kv_score: no place for sums of queries");
    launch(stream,
           {.grid_x = args.pages.kv_heads,
            .grid_y = static_cast<int32_t>(args.sequences.size()),
            .threads = kSumThreads},
           query_sums_kernel, args, mirror(args.sequences, stream), mirror(args.scorings, stream));
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
    TESSERA_CHECK(!has_own_softmax(args.scorings[i].scorer),
                  "the CUDA backend has no scorers with a softmax of their own");
    TESSERA_CHECK(
        pages.token_scores != nullptr && span.context + span.count < pages.row_token_scores,
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
         {.grid_x = static_cast<int32_t>(div_ceil(longest, kFoldThreads)),
          .grid_y = static_cast<int32_t>(args.sequences.size()) * args.pages.kv_heads,
          .threads = kFoldThreads},
         fold_kernel, args, mirror(args.sequences, stream), mirror(args.scorings, stream));
}

template <int kDim>
void start(const KvScoreArgs& args, int32_t tiles, Stream stream) {
  launch(stream,
         {.grid_x = static_cast<int32_t>(div_ceil(tiles, kWarpsOfBlock)),
          .grid_y = static_cast<int32_t>(args.sequences.size()) * args.pages.kv_heads,
          .threads = kThreads,
          .shared_bytes = block_memory_bytes<kDim, kProducts>(any_sparse(args))},
         score_kernel<kDim>, args, mirror(args.sequences, stream), mirror(args.scorings, stream));
}

}  // namespace

void kv_score(const KvScoreArgs& args, Stream stream) {
  const bool any_token_scores = check_args(args);
  add_query_sums(args, stream);
  if (!any_token_scores) {
    return;
  }
  bool any_left = false;  // attention left scores
  bool any_other = false;
  int32_t longest = 0;
  for (size_t i = 0; i < args.sequences.size(); ++i) {
    const SequenceSpan& span = args.sequences[i];
    const bool left = has_attention_weight_rows(args, span, static_cast<int64_t>(i));
    any_left = any_left || (left && args.scorings[i].token_scores);
    any_other = any_other || (!left && args.scorings[i].token_scores);
    longest = span.context + span.count > longest ? span.context + span.count : longest;
  }
  if (any_left) {
    start_fold(args, longest, stream);
  }
  if (!any_other) {
    return;
  }
  const int32_t tiles = longest / kKvGroup + 3;  // both tiers may end in a partly filled one
  if (args.pages.head_dim <= 64) {
    start<64>(args, tiles, stream);
  } else {
    start<128>(args, tiles, stream);
  }
}

}  // namespace tessera::cuda
