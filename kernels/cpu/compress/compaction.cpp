#include "kernels/cpu/compress/compaction.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/compress/query_sums.h"
#include "kernels/cpu/simd/limits.h"

namespace tessera {
namespace {

class Compaction {
 public:
  Compaction(const TokenOps& ops, const KvPool& pool, const KvCompression& sequence,
             std::span<const TokenDecision> decisions, const TokenRow& row, RowChange& change)
      : ops_(ops),
        pages_(pool.pages),
        high_layout_(pages_.layouts[sequence.tiers.high]),
        low_layout_(pages_.layouts[sequence.tiers.low]),
        high_shape_(high_layout_),
        low_shape_(low_layout_),
        decisions_(decisions),
        row_(row),
        change_(change),
        left_(pool.tables + row.row * pages_.row_pages),
        right_(left_ + pages_.row_pages - 1),
        token_scores_(pages_.token_score_row(row.row)),
        high_(row.counts.high),
        low_(row.counts.low) {
    if (sequence.policy.key_score == KvKeyScore::output_aware && change.demoted > 0) {
      recent_query_weights(pages_, row.row, sequence.tokens, key_weights_);
      by_key_weights_ = true;
    }
    // The left end may have pages for more tokens than it holds. The right end never has.
    change_.right_pages = static_cast<int32_t>(div_ceil(low_, low_layout_.capacity));
    const int32_t left_end = pages_.row_pages - change_.right_pages;
    while (change_.left_pages < left_end && left_[change_.left_pages] != kNoPage) {
      ++change_.left_pages;
    }
  }

  void run() {
    if (change_.demoted == 0 && change_.dropped == 0) {
      return;
    }
    // Scores of the open group follow those of the high tier. Copied, because scores of low tokens
    // may need their places in the meantime.
    KvTokenScore open_token_scores[kKvGroup];
    std::copy_n(&high_token_score(high_), row_.open, open_token_scores);
    drop_from_low();
    thin_high();
    std::copy_n(open_token_scores, row_.open, &high_token_score(high_));
    pages_.rows[row_.row] = {high_, low_};
  }

 private:
  TokenPlace high_place(int32_t place) const {
    return {pages_.page(left_[place / high_layout_.capacity]), place % high_layout_.capacity};
  }
  TokenPlace low_place(int32_t place) const {
    return {pages_.page(right_[-(place / low_layout_.capacity)]), place % low_layout_.capacity};
  }
  KvTokenScore& high_token_score(int32_t place) const {
    return token_scores_[place - row_.first_score];
  }
  KvTokenScore& low_token_score(int32_t place) const {
    return token_scores_[pages_.row_token_scores - 1 - place];
  }

  // Decisions about tokens that have not moved. `place` is a place before compaction.
  TokenDecision high_decision(int32_t place) const {
    return decisions_[static_cast<size_t>(place - row_.first_score)];
  }
  bool low_stays(int32_t place) const {
    return decisions_[static_cast<size_t>(pages_.row_token_scores - 1 - place)] ==
           TokenDecision::stay;
  }

  // Fills gaps from the end, so that no token moves needlessly.
  void drop_from_low() {
    for (int32_t place = row_.own_low; place < low_; ++place) {
      if (low_stays(place)) {
        continue;
      }
      do {
        --low_;
      } while (low_ > place && !low_stays(low_));
      if (low_ > place) {
        move(low_shape_, low_place(low_), low_place(place));
        low_token_score(place) = low_token_score(low_);
      }
    }
    carry_out(low_shape_);
  }

  void thin_high() {
    for (int32_t place = row_.own_high; place < high_; ++place) {
      const TokenDecision decision = high_decision(place);
      if (decision == TokenDecision::stay) {
        continue;
      }
      for (; high_ - 1 > place; --high_) {
        const TokenDecision last = high_decision(high_ - 1);
        if (last == TokenDecision::stay) {
          break;
        }
        leave_high(high_ - 1, last);
      }
      leave_high(place, decision);
      if (--high_ > place) {
        move(high_shape_, high_place(high_), high_place(place));
        high_token_score(place) = high_token_score(high_);
      }
    }
    carry_out(high_shape_);
  }

  // Tokens move from beyond a tier's end to gaps before it, so moves can be deferred and batched.
  void move(const TileShape& shape, TokenPlace from, TokenPlace to) {
    if (pending_ == kMaxMoves) {
      carry_out(shape);
    }
    moves_[pending_++] = {from, to};
  }
  void carry_out(const TileShape& shape) {
    ops_.copy(shape, {moves_, pending_});
    pending_ = 0;
  }

  void leave_high(int32_t place, TokenDecision decision) {
    if (decision != TokenDecision::demote) {
      return;
    }
    if (low_ == change_.right_pages * low_layout_.capacity) {
      add_low_page();
    }
    ops_.demote(high_shape_, high_place(place), low_shape_, low_place(low_),
                by_key_weights_ ? key_weights_ : nullptr);
    low_token_score(low_) = high_token_score(place);
    ++low_;
  }

  // Takes a page from the high tier's end if one is empty there, else the spare page. All tokens
  // that entered the low tier before the present one have left the high tier, and its end has moved
  // along. A low page holds at least as many tokens as a high page. So for each low page but the
  // first, a high page has become empty.
  void add_low_page() {
    int32_t page = kNoPage;
    if (change_.left_pages > div_ceil(high_, high_layout_.capacity)) {
      carry_out(high_shape_);  // pending moves read from that page
      page = left_[--change_.left_pages];
      left_[change_.left_pages] = kNoPage;
    } else {
      page = change_.spare;
      change_.spare = kNoPage;
    }
    TESSERA_CHECK(page != kNoPage, "kv_compress: a row needs more than its one spare page");
    TESSERA_CHECK(change_.left_pages + change_.right_pages < pages_.row_pages,
                  "kv_compress: the row is full");
    right_[-change_.right_pages++] = page;
  }

  const TokenOps& ops_;
  const KvPagesView& pages_;
  const KvPageLayout& high_layout_;
  const KvPageLayout& low_layout_;
  const TileShape high_shape_;
  const TileShape low_shape_;
  const std::span<const TokenDecision> decisions_;
  const TokenRow& row_;
  RowChange& change_;
  int32_t* left_;   // the row's table, from its left end
  int32_t* right_;  // the row's table, from its right end, downwards
  KvTokenScore* token_scores_;
  int32_t high_;  // tokens kept
  int32_t low_;
  float key_weights_[kMaxHeadDim] = {};  // for KvKeyScore::output_aware
  bool by_key_weights_ = false;
  TokenMove moves_[kMaxMoves];
  size_t pending_ = 0;  // moves not carried out yet
};

}  // namespace

void decide(const TokenRow& row, const Significance& significance, const RowCutoffs& cutoffs,
            std::span<TokenDecision> decisions, RowChange& change) {
  std::fill_n(decisions.begin(), row.counts.high - row.first_score, TokenDecision::stay);
  std::fill_n(decisions.end() - row.counts.low, row.counts.low, TokenDecision::stay);
  const KvTokenScore* token_scores = row.pages.token_score_row(row.row);
  const auto meet = [&](const KvTokenScore& token_score, TokenDecision decision) {
    decisions[static_cast<size_t>(&token_score - token_scores)] = decision;
    change.demoted += decision == TokenDecision::demote ? 1 : 0;
    change.dropped += decision == TokenDecision::drop ? 1 : 0;
  };
  row.for_each_own_high([&](const KvTokenScore& token_score, TokenAge age) {
    meet(token_score, decision_in_high(cutoffs, age, significance.key(token_score)));
  });
  if (cutoffs.old_low > kLowestKey) {
    row.for_each_own_low([&](const KvTokenScore& token_score) {
      meet(token_score, significance.key(token_score) < cutoffs.old_low ? TokenDecision::drop
                                                                        : TokenDecision::stay);
    });
  }
}

void compact_row(const TokenOps& ops, const KvPool& pool, const KvCompression& sequence,
                 std::span<const TokenDecision> decisions, const TokenRow& row, RowChange& change) {
  Compaction(ops, pool, sequence, decisions, row, change).run();
}

}  // namespace tessera
