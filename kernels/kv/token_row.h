#pragma once

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "kernels/kv/kv_compression.h"
#include "kernels/kv/kv_pool.h"
#include "kernels/kv/rules/token_key.h"

namespace tessera {

// Errors: aborts unless kv_compress can serve `sequence`. Shared by both backends.
inline void check_compression(const KvPool& pool, const KvCompression& sequence) {
  const KvPagesView& pages = pool.pages;
  TESSERA_CHECK(sequence.slot >= 0 && sequence.slot < pool.slots, "kv_compress: no such slot");
  TESSERA_CHECK(sequence.policy.is_lossy(), "kv_compress: a policy that compresses nothing");
  TESSERA_CHECK(pages.token_scores != nullptr &&
                    (sequence.section > 0) == (pages.section_scores > 0) &&
                    (sequence.section > 0 ? sequence.section <= pages.section_scores
                                          : sequence.tokens < pages.row_token_scores),
                "kv_compress: too few token scores");
  TESSERA_CHECK(sequence.section == 0 || (sequence.tokens % kKvGroup == 0 && !sequence.pool_scores),
                "kv_compress: a section ends with a group, and its scores are not pooled");
  TESSERA_CHECK(sequence.policy.key_score == KvKeyScore::magnitude || pages.query_sums != nullptr,
                "kv_compress: no sums of queries");
  TESSERA_CHECK(sequence.forgotten % kKvGroup == 0 &&
                    (sequence.forgotten == 0 || sequence.tokens % kKvGroup == 0),
                "kv_compress: whole groups are forgotten, behind whole groups");
  const KvPageLayout& high = pages.layouts[sequence.tiers.high];
  const KvPageLayout& low = pages.layouts[sequence.tiers.low];
  TESSERA_CHECK(high.format == sequence.policy.high && low.format == sequence.policy.low,
                "kv_compress: tiers of other formats than the policy's");
  TESSERA_CHECK(high.capacity > 0 && low.capacity >= high.capacity,
                "kv_compress: the low tier is less dense than the high one");
}

// Returns: true if the significances of a row's tokens sum to about 1.
constexpr bool is_mean_over_queries(KvScorer scorer) {
  return with_scorer(scorer, [](auto type) { return decltype(type)::kMeanOverQueries; });
}

// Significance of a token, from its score. For the scorer `mean` it is the mean attention from
// later queries. That is the expected share of the next query's attention, because a query's
// attention sums to one. To divide the means by their sum again would let the newest tokens, which
// few queries saw, rescale all others.
class Significance {
 public:
  explicit Significance(const KvCompression& sequence)
      : mean_(is_mean_over_queries(sequence.policy.scorer)) {
    const KvScoring scoring = scoring_of(sequence.policy, sequence.prompt_tokens);
    begin_ = scoring.begin;
    end_ = std::min(scoring.end, sequence.tokens);
    share_of_all_ = end_ > begin_ ? 1.0f / static_cast<float>(end_ - begin_) : 0.0f;
  }

  constexpr float of(const KvTokenScore& token_score) const {
    if (!mean_) {
      return token_score.score;
    }
    if (token_score.position < begin_) {  // most tokens: all queries that count saw it
      return token_score.score * share_of_all_;
    }
    const int32_t queries = end_ - (token_score.position + 1);
    return queries > 0 ? token_score.score / static_cast<float>(queries) : 0.0f;
  }
  constexpr TokenKey key(const KvTokenScore& token_score) const {
    return key_of(of(token_score), token_score.position);
  }

 private:
  bool mean_;
  int32_t begin_;
  int32_t end_;
  float share_of_all_;
};

// ---- one row: the tokens of a sequence in one layer and KV head

// One row of a sequence: the positions at which the age of tokens changes, and the places from
// which on tokens may change.
// Requires: the views outlive this.
struct TokenRow {
  TokenRow(const KvPool& pool, const KvCompression& sequence, int64_t row_index)
      : TokenRow(pool.pages, sequence, row_index, 0, 0) {
    const int32_t* table = pages.table(row);
    const int32_t high_capacity = pages.layouts[sequence.tiers.high].capacity;
    const int32_t low_capacity = pages.layouts[sequence.tiers.low].capacity;
    own_high =
        std::max(first_score,
                 std::min(counts.high, shared_pages(pool, table, 1, counts.high, high_capacity)));
    own_low = std::min(
        counts.low, shared_pages(pool, table + pages.row_pages - 1, -1, counts.low, low_capacity));
  }

  // high_from, low_from: own_high and own_low, if the backend computes them itself.
  constexpr TokenRow(const KvPagesView& all, const KvCompression& sequence, int64_t row_index,
                     int32_t high_from, int32_t low_from)
      : pages(all),
        row(row_index),
        counts(all.rows[row_index]),
        open(sequence.tokens % kKvGroup),
        sinks(sequence.policy.sinks),
        evaluated(sequence.evaluated),
        recent_from(sequence.evaluated_after()),
        first_score(sequence.section > 0 ? counts.high - sequence.section : 0),
        own_high(high_from > first_score ? high_from : first_score),
        own_low(low_from) {}

  constexpr const KvTokenScore& high_token_score(int32_t place) const {
    return pages.token_score_row(row)[place - first_score];
  }
  constexpr const KvTokenScore& low_token_score(int32_t place) const {
    return pages.token_score_row(row)[pages.row_token_scores - 1 - place];
  }
  constexpr TokenAge age(const KvTokenScore& token_score) const {
    if (token_score.position < sinks || token_score.position >= recent_from) {
      return TokenAge::kept;
    }
    return token_score.position < evaluated ? TokenAge::old : TokenAge::fresh;
  }

  // Visits all stored tokens, the open group's included: visit(token_score).
  template <class Visit>
  void for_each_stored(Visit&& visit) const {
    for (int32_t i = 0; i < counts.high + open; ++i) {
      visit(high_token_score(i));
    }
    for (int32_t j = 0; j < counts.low; ++j) {
      visit(low_token_score(j));
    }
  }
  // Visits the high tokens that a rule may touch: visit(token_score, age).
  template <class Visit>
  void for_each_own_high(Visit&& visit) const {
    for (int32_t i = own_high; i < counts.high; ++i) {
      const TokenAge token_age = age(high_token_score(i));
      if (token_age != TokenAge::kept) {
        visit(high_token_score(i), token_age);
      }
    }
  }
  // Visits the low tokens that a rule may touch, all of them old: visit(token_score).
  template <class Visit>
  void for_each_own_low(Visit&& visit) const {
    for (int32_t j = own_low; j < counts.low; ++j) {
      if (low_token_score(j).position >= sinks) {
        visit(low_token_score(j));
      }
    }
  }
  // Visits both: visit(token_score, age).
  template <class Visit>
  void for_each_own(Visit&& visit) const {
    for_each_own_high(visit);
    for_each_own_low([&](const KvTokenScore& token_score) { visit(token_score, TokenAge::old); });
  }

  const KvPagesView& pages;
  int64_t row;
  KvRow counts;
  int32_t open;  // tokens of the open group
  int32_t sinks;
  int32_t evaluated;    // positions below are old
  int32_t recent_from;  // positions from here on are recent
  int32_t first_score;  // place of the first high token that has a score
  int32_t own_high;     // high tokens below this place never move or change
  int32_t own_low;

 private:
  // Returns: tokens up to the end of the last page with several owners. `table` advances by `step`.
  static int32_t shared_pages(const KvPool& pool, const int32_t* table, int32_t step,
                              int32_t tokens, int32_t capacity) {
    for (int64_t page = div_ceil(tokens, capacity); page > 0; --page) {
      if (pool.owners[table[step * (page - 1)]] > 1) {
        return static_cast<int32_t>(page) * capacity;
      }
    }
    return 0;
  }
};

// ---- decision of a rule about one row

enum class TokenDecision : uint8_t { stay, demote, drop };

constexpr TokenDecision decision_in_high(const RowCutoffs& cutoffs, TokenAge age, TokenKey key) {
  const bool fresh = age == TokenAge::fresh;
  if (key >= (fresh ? cutoffs.fresh_high : cutoffs.old_high)) {
    return TokenDecision::stay;
  }
  return key >= (fresh ? cutoffs.fresh_low : cutoffs.old_floor) ? TokenDecision::demote
                                                                : TokenDecision::drop;
}

}  // namespace tessera
