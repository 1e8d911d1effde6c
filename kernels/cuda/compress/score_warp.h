#pragma once

#include "kernels/cuda/compress/token_contributions.h"
#include "kernels/cuda/pages/format_kind.h"

namespace tessera::cuda {

constexpr int32_t kProducts = 1;  // at once, of kPairsOfProduct pairs each
constexpr int32_t kPairs = kPairsOfProduct * kProducts;

// ---- queries whose scores are computed again: those of prompts, and those for which attention had
// no room to leave scores

// One warp updates 64 token scores. It takes the counting queries in order of position, one block
// of pairs at a time. A query reads the tokens of its own group unquantised and all others from
// pages. For one query, a token is therefore in one of two tiles of 64: the pages' tile or the
// query's own group. The two tiles are offset against each other if a tier does not end at a tile.
template <int kDim>
class ScoreWarp {
 public:
  using Memory = AnyWarpMemory<kDim, kProducts>;

  TESSERA_DEVICE ScoreWarp(const KvScoreArgs& args, const SequenceSpan& span,
                           const KvScoring& scoring, int32_t kv_head, Memory& memory)
      : args_(args),
        span_(span),
        rows_{args.pages, args.layer, args.dense.data()},
        row_(token_score_row(args.pages, span, scoring,
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
    if (first_ + kKvGroup <= row_.first) {
      return;
    }
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
    const int32_t place = first_ + own(i);
    return place >= row_.first && place < (is_left_ ? row_.left : row_.low);
  }
  TESSERA_DEVICE KvTokenScore& token_score(int32_t i) const {
    const int32_t place = first_ + own(i);
    return row_.token_scores[is_left_ ? place - row_.first : row_.row_token_scores - 1 - place];
  }
  // Returns: true if no earlier step has written the score.
  TESSERA_DEVICE bool is_fresh(int32_t i) const {
    return row_.by_section ? row_.begins : is_left_ && first_ + own(i) >= row_.fresh;
  }

  TESSERA_DEVICE int32_t token_position(int32_t i) const {
    if (row_.by_section) {
      return row_.first_position + first_ + own(i) - row_.first;
    }
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
    load_queries<kDim, kProducts>(memory_, block.pairs, args_.pages.head_dim, args_.scale * kLog2E,
                                  query);
    if (in_pages > 0) {
      const Tile tile{as_served(args_.pages.layouts[is_left_ ? span_.tiers.high : span_.tiers.low]),
                      0, in_pages < kKvGroup ? in_pages : kKvGroup, false};
      weigh(block, tokens, tile, query);
      pay(block, 0, tile.end);
    }
    if (reads_group) {
      const Tile tile{args_.pages.residual_layout, 0,
                      position(block, block.pairs - 1) % kKvGroup + 1, true};
      weigh(block, tokens, tile, query);
      pay(block, of_group - first_, tile.end);
    }
  }

  // Writes the attention that the tile's tokens receive from each pair of the block to the warp's
  // memory.
  template <class QueryAt>
  TESSERA_DEVICE void weigh(const PairBlock& block, const RowTokens& tokens, const Tile& tile,
                            const QueryAt& query) {
    sync_warp();
    if (lane() < Tile::kPlaces) {
      memory_.places[lane()] = tile.place(args_.pages, tokens, is_left_, first_ / kKvGroup, lane());
    }
    sync_warp();
    float scores[kProducts][8];
    tile_scores(memory_, tile, block.pairs, args_.scale * kLog2E, query, scores);
    TESSERA_UNROLL
    for (int32_t product = 0; product < kProducts; ++product) {
      const int32_t pair = kPairsOfProduct * product + lane() % 4;
      if (pair < block.pairs) {
        const int32_t in_group = position(block, pair) % kKvGroup + 1;
        const int32_t seen = tile.is_dense ? in_group : tile.end;
        const float log_sum =
            args_.log_sums.data[batch_row(block, pair) * args_.log_sums.stride + head(block, pair)];
        TESSERA_UNROLL
        for (int32_t i = 0; i < 8; ++i) {
          const int32_t token = token_of_score(tile.layout.format.is_codes(), i);
          const float a = token < seen ? attention_of(scores[product][i], log_sum) : 0.0f;
          received_of_pair(pair)[token] = token < seen ? contribution_of(a, scoring_.scorer) : 0.0f;
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
        received_[i] = joined(scoring_.scorer, received_[i], received_of_pair(pair)[token]);
        if ((block.first_pair + pair) % heads_ == heads_ - 1) {
          scores_[i] = score_after_query(scoring_.scorer, heads_, scores_[i], received_[i]);
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

}  // namespace tessera::cuda
