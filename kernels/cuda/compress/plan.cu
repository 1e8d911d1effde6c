#include "kernels/cuda/compress/job.h"

namespace tessera::cuda {
namespace {

using namespace simt;

// ---- before planning

constexpr int32_t kMaxReach = kMaxScorePool / 2;

struct PrepareMemory {
  OfWarps<int32_t> counts;
  float scores[kMaxReach + kPlanThreads + kMaxReach];
};

// Returns: tokens up to the end of the last page with several owners. `step`: 1 or -1, the
// direction in `table`.
TESSERA_DEVICE int32_t shared_tokens(const KvPool& pool, const int32_t* table, int32_t step,
                                     int32_t tokens, int32_t capacity, OfWarps<int32_t>& memory) {
  int32_t end = 0;
  for (int32_t page = thread(); page * capacity < tokens; page += kPlanThreads) {
    end = pool.owners[table[step * page]] > 1 ? (page + 1) * capacity : end;
  }
  end = block_max(end, memory);
  return end < tokens ? end : tokens;
}

// Replaces each token's score by the maximum of its neighbourhood (SnapKV), in place. A chunk saves
// the original scores of its last tokens for the next chunk. `seen`: number of tokens.
TESSERA_DEVICE void pool_scores(const CompressJob& job, KvTokenScore* token_scores, int32_t seen,
                                float (&scores)[kMaxReach + kPlanThreads + kMaxReach]) {
  const int32_t reach = job.sequence.policy.score_pool / 2;
  for (int32_t first = 0; first < seen; first += kPlanThreads) {
    const float carried = thread() < reach ? scores[kPlanThreads + thread()] : 0.0f;
    sync_block();
    if (thread() < reach) {
      scores[thread()] = carried;
    }
    for (int32_t i = thread(); i < kPlanThreads + reach && first + i < seen; i += kPlanThreads) {
      scores[reach + i] = token_scores[first + i].score;
    }
    sync_block();
    const int32_t own = first + thread();
    if (own < seen) {
      float highest = scores[reach + thread()];
      for (int32_t i = own - reach < 0 ? 0 : own - reach; i <= own + reach && i < seen; ++i) {
        highest = max(highest, scores[reach + i - first]);
      }
      token_scores[own].score = highest;
    }
    sync_block();
  }
}

// One block for each row.
TESSERA_KERNEL(kPlanThreads) prepare_kernel(CompressJob job) {
  PrepareMemory& memory = shared<PrepareMemory>();
  const KvPagesView& pages = job.pool.pages;
  const KvCompression& sequence = job.sequence;
  const int64_t row = pages.row_index(sequence.slot, 0, 0) + block_x();
  const KvRow counts = pages.rows[row];
  const int32_t* table = pages.table(row);
  RowPlan plan;
  plan.own_high = shared_tokens(job.pool, table, 1, counts.high,
                                pages.layouts[sequence.tiers.high].capacity, memory.counts);
  plan.own_low = shared_tokens(job.pool, table + pages.row_pages - 1, -1, counts.low,
                               pages.layouts[sequence.tiers.low].capacity, memory.counts);
  if (thread() == 0) {
    job.scratch.plans[block_x()] = plan;
  }
  if (sequence.pool_scores && sequence.policy.score_pool > 1) {
    const int32_t stored = counts.high + sequence.tokens % kKvGroup;
    const int32_t complete = sequence.prompt_tokens - sequence.policy.score_window;
    pool_scores(job, pages.token_score_row(row), stored < complete ? stored : complete,
                memory.scores);
  }
}

// ---- rules: from a row's token scores to its cutoffs, as kernels/cpu/compress/rules.h specifies

class RowRule {
 public:
  TESSERA_DEVICE RowRule(const CompressJob& job, const TokenRow& row, int32_t budget,
                         BlockSums& sums)
      : job_(job), policy_(job.sequence.policy), row_(row), budget_(budget), sums_(sums) {}

  TESSERA_DEVICE RowCutoffs cutoffs() const {
    switch (policy_.rule) {
      case KvRule::thresholds:
        return by_thresholds();
      case KvRule::budget:
        return by_budget();
      default:
        return by_mass();
    }
  }

 private:
  TESSERA_DEVICE TokenKey key(const KvTokenScore& token_score) const {
    return job_.significance.key(token_score);
  }
  TESSERA_DEVICE int32_t total(int32_t count) const { return block_total(count, sums_.counts); }

  // Returns: sum of the scores of all tokens in the row; 1 if they are means over
  // queries.
  TESSERA_DEVICE double total_score() const {
    if (is_mean_over_queries(policy_.scorer)) {
      return 1;
    }
    double score = 0;
    for (int32_t i = thread(); i < row_.counts.high + row_.open; i += threads()) {
      score += row_.high_token_score(i).score;
    }
    for (int32_t j = thread(); j < row_.counts.low; j += threads()) {
      score += row_.low_token_score(j).score;
    }
    return block_total(score, sums_.masses);
  }

  TESSERA_DEVICE RowCutoffs by_thresholds() const {
    const double mean_score = total_score() / job_.sequence.tokens;
    const TokenKey low = key_of(static_cast<float>(policy_.alpha_low * mean_score), 0);
    const TokenKey high = policy_.has_low_tier()
                              ? key_of(static_cast<float>(policy_.alpha_high * mean_score), 0)
                              : low;
    int32_t high_victims = 0;
    int32_t low_victims = 0;
    int32_t went_high = 0;
    int32_t went_low = 0;
    const auto is_victim = [&](TokenAge age, bool in_high, TokenKey of) {
      return age == TokenAge::old && of < (in_high ? high : low);
    };
    each_own(row_, [&](const KvTokenScore& token_score, TokenAge age, bool in_high, int32_t) {
      const TokenKey of = key(token_score);
      const bool victim = is_victim(age, in_high, of);
      went_high += age == TokenAge::fresh && of >= high ? 1 : 0;
      went_low += age == TokenAge::fresh && of >= low && of < high ? 1 : 0;
      high_victims += victim && in_high ? 1 : 0;
      low_victims += victim && !in_high ? 1 : 0;
    });
    // With at least as many candidates as victims, all tokens below the threshold leave.
    const auto cut = [&](bool of_high, TokenKey threshold, int32_t came, int32_t victims) {
      came = total(came);
      victims = total(victims);
      return came >= victims
                 ? threshold
                 : cut_above_worst(victims - came, victims, sums_, [&](auto&& visit) {
                     each_own(row_, [&](const KvTokenScore& token_score, TokenAge age, bool in_high,
                                        int32_t) {
                       if (in_high == of_high && is_victim(age, in_high, key(token_score))) {
                         visit(key(token_score));
                       }
                     });
                   });
    };
    RowCutoffs cutoffs{.fresh_high = high, .fresh_low = low};
    cutoffs.old_high = cut(true, high, went_high, high_victims);
    cutoffs.old_floor = low;
    cutoffs.old_low = cut(false, low, went_low, low_victims);
    return cutoffs;
  }

  TESSERA_DEVICE RowCutoffs by_budget() const {
    int32_t own = 0;
    each_own(row_, [&](const KvTokenScore&, TokenAge, bool, int32_t) { ++own; });
    own = total(own);
    const int32_t kept_anyway = stored_tokens(row_) - own;
    const int32_t keep = clamped(budget_ - kept_anyway, own);
    const auto cut = [&](int32_t best) {
      return cut_above_worst(best, own, sums_, [&](auto&& visit) {
        each_own(row_, [&](const KvTokenScore& token_score, TokenAge, bool, int32_t) {
          visit(key(token_score));
        });
      });
    };
    RowCutoffs cutoffs;
    cutoffs.fresh_low = cut(keep);
    cutoffs.fresh_high = cutoffs.fresh_low;
    if (policy_.has_low_tier()) {
      const double wanted = double{policy_.high_share} * budget_;
      const auto whole = static_cast<int32_t>(wanted);
      const int32_t high = whole + (wanted - whole >= 0.5 ? 1 : 0);
      cutoffs.fresh_high = cut(clamped(high - kept_anyway, keep));
    }
    cutoffs.old_high = cutoffs.fresh_high;
    cutoffs.old_floor = cutoffs.fresh_low;
    cutoffs.old_low = cutoffs.fresh_low;
    return cutoffs;
  }

  TESSERA_DEVICE RowCutoffs by_mass() const {
    const auto each_fresh = [&](auto&& visit) {
      each_own(row_, [&](const KvTokenScore& token_score, TokenAge age, bool, int32_t) {
        if (age == TokenAge::fresh) {
          visit(key(token_score), double{job_.significance.of(token_score)});
        }
      });
    };
    double fresh = 0;
    each_fresh([&](TokenKey, double mass) { fresh += mass; });
    fresh = block_total(fresh, sums_.masses);
    const double mass = job_.sequence.evaluated == 0 ? total_score() : fresh;
    const double may_drop = (1.0 - double{policy_.mass_keep}) * mass;
    const double may_lower = (1.0 - double{policy_.mass_high}) * mass;
    RowCutoffs cutoffs;
    cutoffs.fresh_low = may_drop > 0 ? highest_cutoff(may_drop, sums_, each_fresh) : kLowestKey;
    cutoffs.fresh_high = !policy_.has_low_tier() ? cutoffs.fresh_low
                         : may_lower > 0         ? highest_cutoff(may_lower, sums_, each_fresh)
                                                 : kLowestKey;
    return cutoffs;
  }

  TESSERA_DEVICE static int32_t clamped(int32_t count, int32_t max) {
    return count < 0 ? 0 : count > max ? max : count;
  }

  const CompressJob& job_;
  const KvPolicy& policy_;
  const TokenRow& row_;
  int32_t budget_;
  BlockSums& sums_;
};

// One block for each row: computes its cutoffs and the decision about every token.
TESSERA_KERNEL(kPlanThreads) plan_kernel(CompressJob job) {
  BlockSums& sums = shared<BlockSums>();
  const TokenRow row = token_row(job, block_x());
  const int32_t budget = job.budgets != nullptr ? job.budgets[block_x()] : 0;
  const RowCutoffs cutoffs = RowRule(job, row, budget, sums).cutoffs();
  const int32_t row_token_scores = job.pool.pages.row_token_scores;
  TokenDecision* decisions = job.scratch.decisions + int64_t{block_x()} * row_token_scores;
  for (int32_t i = thread(); i < row.counts.high; i += kPlanThreads) {
    decisions[i] = TokenDecision::stay;
  }
  for (int32_t j = thread(); j < row.counts.low; j += kPlanThreads) {
    decisions[row_token_scores - 1 - j] = TokenDecision::stay;
  }
  sync_block();
  int32_t demoted = 0;
  int32_t dropped = 0;
  each_own(row, [&](const KvTokenScore& token_score, TokenAge age, bool in_high, int32_t place) {
    const TokenKey key = job.significance.key(token_score);
    const TokenDecision decision = in_high                 ? decision_in_high(cutoffs, age, key)
                                   : key < cutoffs.old_low ? TokenDecision::drop
                                                           : TokenDecision::stay;
    decisions[in_high ? place : row_token_scores - 1 - place] = decision;
    demoted += decision == TokenDecision::demote ? 1 : 0;
    dropped += decision == TokenDecision::drop ? 1 : 0;
  });
  demoted = block_total(demoted, sums.counts);
  dropped = block_total(dropped, sums.counts);
  if (thread() == 0) {
    job.scratch.plans[block_x()].demoted = demoted;
    job.scratch.plans[block_x()].dropped = dropped;
  }
}

}  // namespace

void prepare_rows(const CompressJob& job, Stream stream) {
  launch(stream,
         {.grid_x = job_rows(job), .threads = kPlanThreads, .shared_bytes = sizeof(PrepareMemory)},
         prepare_kernel, job);
}

void plan_rows(const CompressJob& job, Stream stream) {
  launch(stream,
         {.grid_x = job_rows(job), .threads = kPlanThreads, .shared_bytes = sizeof(BlockSums)},
         plan_kernel, job);
}

}  // namespace tessera::cuda
