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

// Replaces each token's score by the maximum of its neighbourhood, in place. A chunk saves
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
  }
}

// One block for each row.
TESSERA_KERNEL(kPlanThreads) prepare_kernel(CompressJob job) {
  PrepareMemory& memory = shared<PrepareMemory>();
  const KvPagesView& pages = job.pool.pages;
  const KvCompression& sequence = job.sequence;
  const int64_t row = pages.row_index(sequence.slot, 0, 0) + block_x();
  KvRow counts = pages.rows[row];
  counts.high -= sequence.forgotten;
  sync_block();  // every thread has read the count
  if (thread() == 0) {
    pages.rows[row] = counts;
    if (sequence.section > 0) {
      pages.section_first(row) = counts.high - sequence.section;
    }
  }
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
    const int32_t seen = stored < complete ? stored : complete;
    pool_scores(job, pages.token_score_row(row), seen, memory.scores);
  }
}

// ---- rules

// One row, for a rule (kernels/kv/kv_rules.h). All threads of the block call each function, and
// get the same result.
class RuleRow {
 public:
  TESSERA_DEVICE RuleRow(const CompressJob& job, const TokenRow& row, int32_t budget,
                         BlockSums& sums)
      : job_(job), row_(row), budget_(budget), sums_(sums) {}

  TESSERA_DEVICE const KvCompression& sequence() const { return job_.sequence; }
  TESSERA_DEVICE int32_t budget() const { return budget_; }
  TESSERA_DEVICE int32_t stored() const { return stored_tokens(row_); }
  TESSERA_DEVICE double total_score() const {
    if (is_mean_over_queries(job_.sequence.policy.scorer)) {
      return 1;
    }
    double score = 0;
    each_stored(row_, [&](const KvTokenScore& token_score) { score += token_score.score; });
    return block_total(score, sums_.masses);
  }
  template <class Select>
  TESSERA_DEVICE double mass(Select&& select) const {
    double mass = 0;
    each_key([&](TokenAge age, bool in_high, TokenKey key) {
      mass += select(age, in_high, key) ? significance_of(key) : 0.0f;
    });
    return block_total(mass, sums_.masses);
  }
  template <int kCounts, class Add>
  TESSERA_DEVICE RuleCounts<kCounts> tally(Add&& add) const {
    RuleCounts<kCounts> counts;
    each_key([&](TokenAge age, bool in_high, TokenKey key) { add(counts, age, in_high, key); });
    for (int32_t& count : counts.of) {
      count = block_total(count, sums_.counts);
    }
    return counts;
  }
  template <class Select>
  TESSERA_DEVICE TokenKey cut_best(int32_t best, Select&& select) const {
    const int32_t all =
        tally<1>([&](RuleCounts<1>& counts, TokenAge age, bool in_high, TokenKey key) {
          counts.of[0] += select(age, in_high, key) ? 1 : 0;
        }).of[0];
    return cut_above_worst(best, all, sums_, [&](auto&& visit) {
      each_key([&](TokenAge age, bool in_high, TokenKey key) {
        if (select(age, in_high, key)) {
          visit(key);
        }
      });
    });
  }
  template <class Select>
  TESSERA_DEVICE TokenKey cut_mass(double limit, Select&& select) const {
    return highest_cutoff(limit, sums_, [&](auto&& visit) {
      each_key([&](TokenAge age, bool in_high, TokenKey key) {
        if (select(age, in_high, key)) {
          visit(key, double{significance_of(key)});
        }
      });
    });
  }

 private:
  template <class Visit>
  TESSERA_DEVICE void each_key(Visit&& visit) const {
    each_own(row_, [&](const KvTokenScore& token_score, TokenAge age, bool in_high, int32_t) {
      visit(age, in_high, job_.significance.key(token_score));
    });
  }

  const CompressJob& job_;
  const TokenRow& row_;
  int32_t budget_;
  BlockSums& sums_;
};

// One block for each row: computes its cutoffs and the decision about every token.
TESSERA_KERNEL(kPlanThreads) plan_kernel(CompressJob job) {
  BlockSums& sums = shared<BlockSums>();
  const TokenRow row = token_row(job, block_x());
  const int32_t budget = job.budgets != nullptr ? job.budgets[block_x()] : 0;
  const RuleRow rule_row(job, row, budget, sums);
  const RowCutoffs cutoffs = with_rule(
      job.sequence.policy.rule(), [&](auto rule) { return decltype(rule)::cutoffs(rule_row); });
  const int32_t row_token_scores = job.pool.pages.row_token_scores;
  TokenDecision* decisions = job.scratch.decisions + int64_t{block_x()} * row_token_scores;
  for (int32_t i = thread(); i < row.counts.high - row.first_score; i += kPlanThreads) {
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
    decisions[in_high ? place - row.first_score : row_token_scores - 1 - place] = decision;
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
