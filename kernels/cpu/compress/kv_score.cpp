#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kernels/cpu/attention/rotated_pairs.h"
#include "kernels/cpu/attention/tile_walk.h"
#include "kernels/cpu/compress/compress_ops.h"
#include "kernels/cpu/compress/decode_scoring.h"
#include "kernels/cpu/compress/query_sums.h"

namespace tessera {

void check_score(const KvScoreArgs& args) {
  const KvPagesView& pages = args.pages;
  TESSERA_CHECK(args.scorings.size() == args.sequences.size(), "kv_score: a scoring for each");
  TESSERA_CHECK(pages.head_dim > 0 && pages.head_dim <= kMaxHeadDim,
                "the CPU backend serves head dimensions up to 256");
  TESSERA_CHECK(args.query_heads % pages.kv_heads == 0 &&
                    args.query_heads / pages.kv_heads <= kMaxScoredHeads,
                "kv_score: query heads are a multiple of KV heads, at most 48 for each");
  TESSERA_CHECK(args.queries.cols == int64_t{args.query_heads} * pages.head_dim,
                "kv_score: columns of queries");
  TESSERA_CHECK(args.log_sums.rows == args.queries.rows && args.log_sums.cols == args.query_heads,
                "kv_score: shape of log_sums");
  const bool weighs = std::any_of(args.scorings.begin(), args.scorings.end(), [](const auto& of) {
    return of.token_scores && weighs_output(of.scorer);
  });
  TESSERA_CHECK(!weighs || (args.residual.rows == args.queries.rows && args.residual.cols > 0),
                "kv_score: rows of the residual stream");
  for (size_t i = 0; i < args.sequences.size(); ++i) {
    const SequenceSpan& span = args.sequences[i];
    TESSERA_CHECK(has_room_for_scores(pages, span, args.scorings[i]),
                  "kv_score: too few token scores");
  }
}

namespace {

// Min tiles of a work item.
constexpr int64_t kTilesOfAPart = 16;
// Min work items of a thread, so that threads finish at about the same time.
constexpr int64_t kItemsOfAThread = 8;

// Scores of one (sequence, KV head), by the kernels of attention. A tile's keys are multiplied by a
// block of queries at once and weighted as in attention. Then the attention of each query is added
// to the token scores, in order of position.
class RowScoring {
 public:
  RowScoring(const AttentionKernels& kernels, const KvScoreArgs& args,
             const AttentionArgs& attention, const TileShapes& shapes)
      : kernels_(kernels),
        args_(args),
        attention_(attention),
        shapes_(shapes),
        heads_(args.query_heads / args.pages.kv_heads) {
    block_.head_dim = args.pages.head_dim;
  }

  void run(size_t sequence, int32_t kv_head) {
    const RowScores scores(args_, sequence, kv_head);
    scores.make_token_scores();
    const int32_t at_once = PairBlock::kPairs / heads_;
    for (int32_t query = scores.begin(); query < scores.end();) {
      const int32_t group = query / kKvGroup;
      const int32_t end = std::min({scores.end(), (group + 1) * kKvGroup, query + at_once});
      const RowTokens tokens = row_tokens(attention_, args_.sequences[sequence],
                                          first_dense(args_, sequence), kv_head, group);
      score({sequence, kv_head, query, end}, scores, tokens);
      query = end;
    }
  }

 private:
  struct Queries {
    size_t sequence;
    int32_t kv_head;
    int32_t begin;  // positions, all of one KV group
    int32_t end;
  };

  void score(const Queries& queries, const RowScores& scores, const RowTokens& tokens) {
    const SequenceSpan& span = args_.sequences[queries.sequence];
    const TileWalk walk(args_.pages, shapes_, tokens, span.tiers);
    load(queries, scores, walk);
    each_tile(queries, scores, walk, [&](int32_t tile) {
      for (int32_t query = queries.begin; query < queries.end; ++query) {
        const int32_t pair = (query - queries.begin) * heads_;
        pay(kernels_, scores, token_scores_of(scores, tokens, tile, query),
            {.weights = block_.weights + pair * kAttentionTile,
             .maxima = block_.maxima + pair,
             .log2_sums = log2_sums_ + pair});
      }
    });
  }

  // Returns: the tiles [first, end) that hold tokens with scores, from the beginning of a split on:
  // maxima run through it.
  static std::pair<int32_t, int32_t> scored_tiles(const RowScores& scores, const TileWalk& walk) {
    if (!scores.by_section()) {
      return {0, walk.tiles()};
    }
    const int32_t first = scores.section_first();
    return {first / kAttentionTile / kSplitTiles * kSplitTiles,
            static_cast<int32_t>(div_ceil(first + scores.scoring().section, kAttentionTile))};
  }

  // Calls visit(tile) with the weights of the block's pairs in each tile that holds scored tokens.
  template <class Visit>
  void each_tile(const Queries& queries, const RowScores& scores, const TileWalk& walk,
                 Visit&& visit) {
    const int32_t group = queries.begin / kKvGroup * kKvGroup;
    const auto [first, end] = scored_tiles(scores, walk);
    KvTile tiles[2];
    const auto find = [&](int32_t tile) {
      const int32_t count = walk.is_dense(tile) ? queries.end - group : walk.tokens(tile);
      walk.find(tile, 0, count, tiles[tile % 2]);
    };
    find(first);
    for (int32_t tile = first; tile < end; ++tile) {
      const bool last = tile + 1 == end;
      if (!last) {
        find(tile + 1);
      }
      if (tile % kSplitTiles == 0) {
        begin_span();
      }
      for (int32_t pair = 0; pair < block_.pairs; ++pair) {
        const int32_t seen =
            walk.is_dense(tile) ? queries.begin + pair / heads_ + 1 - group : walk.tokens(tile);
        block_.visible[pair] = ~uint64_t{0} >> (kAttentionTile - seen);
      }
      turn_query_codes(kernels_, block_, tiles[tile % 2].shape->layout.format, factor());
      kernels_.weigh_tile(block_, {.tile = tiles[tile % 2],
                                   .next = last ? nullptr : &tiles[(tile + 1) % 2],
                                   .begin = 0,
                                   .end = kAttentionTile,
                                   .whole = true});
      visit(tile);
    }
  }

  // Maxima run through a split, as in attention.
  void begin_span() {
    std::fill_n(block_.maxima, PairBlock::kPairs, PairBlock::kLowest);
    std::fill_n(block_.sums, block_.pairs * KvPageLayout::kKeyTile, 0.0f);
    std::fill_n(block_.zeros, block_.pairs * KvPageLayout::kKeyTile, 0.0f);
  }

  // Loads the query forms that the row's tiles need.
  void load(const Queries& queries, const RowScores& scores, const TileWalk& walk) {
    const SequenceSpan& span = args_.sequences[queries.sequence];
    block_.pairs = (queries.end - queries.begin) * heads_;
    const bool floats = walk.any_floats(walk.tiles());
    const bool codes = walk.any_codes(0, walk.tiles());
    const bool sparse = walk.any_sparse(0, walk.tiles());
    for (int32_t pair = 0; pair < block_.pairs; ++pair) {
      const int64_t row = span.first_row + queries.begin + pair / heads_ - span.context;
      const int64_t head = int64_t{queries.kv_head} * heads_ + pair % heads_;
      const float* query = args_.queries.row(row).data() + head * block_.head_dim;
      block_.query_rows[pair] = query;
      if (floats) {
        kernels_.load_query(block_, pair, query, factor());
      }
      if (sparse) {
        kernels_.load_query_tokens(block_, pair, query, factor());
      }
      log2_sums_[pair] =
          scores.log_divisor(queries.begin + pair / heads_, pair % heads_) * kLog2OfE;
    }
    if (codes) {
      load_query_codes(kernels_, block_, false, factor());
    }
  }

  float factor() const { return args_.scale * kLog2OfE; }  // of queries

  const AttentionKernels& kernels_;
  const KvScoreArgs& args_;
  const AttentionArgs& attention_;
  const TileShapes& shapes_;
  const int32_t heads_;  // query heads per KV head
  float log2_sums_[PairBlock::kPairs + kPadding] = {};
  PairBlock block_;  // not initialised: each part is written before it is read
};

// With few rows, the rows of decode queries are divided into parts, so that all threads have work.
int64_t parts_of_a_row(const KvScoreArgs& args, int64_t threads) {
  const int64_t rows = std::ssize(args.sequences) * args.pages.kv_heads;
  const int32_t group = args.query_heads / args.pages.kv_heads;
  const int64_t tiles = args.weights.cols / attention_weight_tile_floats(group);
  return std::clamp<int64_t>(tiles / kTilesOfAPart, 1,
                             div_ceil(threads * kItemsOfAThread, std::max<int64_t>(rows, 1)));
}

void score(const AttentionKernels& kernels, const KvScoreArgs& args, Stream stream) {
  static_assert(kMaxScoredHeads <= PairBlock::kPairs);
  add_query_sums(args, stream);
  const AttentionArgs attention = attention_args(args);
  const TileShapes shapes(attention);
  const int64_t parts = parts_of_a_row(args, ThreadPool::of(stream).threads());
  each_scored_row(args, parts, stream, [&](size_t sequence, int32_t kv_head, int64_t part) {
    if (leaves_attention_weights(args, sequence)) {
      const int64_t row = static_cast<int64_t>(sequence) * args.pages.kv_heads + kv_head;
      const SequenceSpan& span = args.sequences[sequence];
      const RowTokens tokens = row_tokens(attention, span, 0, kv_head, span.last_group());
      const RowScores scores(args, sequence, kv_head);
      DecodeScoring(kernels, tokens, scores, args.weights.row(row)).run(part, parts);
    } else if (part == 0) {
      RowScoring(kernels, args, attention, shapes).run(sequence, kv_head);
    }
  });
}

}  // namespace

namespace avx2 {
void kv_score(const KvScoreArgs& args, Stream stream) {
  score(kAttentionKernels, args, stream);
}
}  // namespace avx2
namespace avx512 {
void kv_score(const KvScoreArgs& args, Stream stream) {
  score(kAttentionKernels, args, stream);
}
}  // namespace avx512
namespace avx512_fp16 {
void kv_score(const KvScoreArgs& args, Stream stream) {
  score(avx512::kFp16AttentionKernels, args, stream);
}
}  // namespace avx512_fp16

}  // namespace tessera
