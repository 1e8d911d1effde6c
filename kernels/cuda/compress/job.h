#pragma once

#include "kernels/cuda/simt/block.h"
#include "kernels/kv/kv_pool.h"
#include "kernels/kv/token_row.h"

namespace tessera::cuda {

// Data of one sequence for the kernels of kv_compress. kernels/kv/token_row.h defines the tokens
// that a rule may change, and the decisions that follow from cutoffs.

// State of one row, handed from one kernel to the next.
struct RowPlan {
  int32_t own_high = 0;  // see TokenRow
  int32_t own_low = 0;
  int32_t demoted = 0;
  int32_t dropped = 0;
  int32_t spare = kNoPage;  // a page, if the low tier needs one before the row frees one
  // Table entries at either end of the row: entries in use, then entries to free.
  int32_t left_pages = 0;
  int32_t right_pages = 0;
};

// Bits of a key. The search for a cutoff has kKeyBits + 1 values: before the first bit and after
// each.
inline constexpr int32_t kKeyBits = 64;

struct CompressScratch {
  RowPlan* plans;            // [rows]
  TokenDecision* decisions;  // [rows, row_token_scores], at the entry of the token score
  int32_t* budgets;          // [rows]
  int32_t* page_counts;      // [4, rows]: see allocators.cu
  TokenKey* page_cutoffs;    // [kKeyBits + 1]
};

struct CompressJob {
  KvPool pool;
  KvCompression sequence;
  Significance significance;
  // For rules that divide a budget: tokens, mean over the rows, and those of each row [rows].
  int32_t row_budget;
  const int32_t* budgets;
  CompressScratch scratch;
  KvCompressed* result;  // memory that host and device can access
};

constexpr int32_t job_rows(const CompressJob& job) {
  return job.pool.pages.layers * job.pool.pages.kv_heads;
}
constexpr TokenRow token_row(const CompressJob& job, int32_t row) {
  const RowPlan& plan = job.scratch.plans[row];
  return {job.pool.pages, job.sequence, job.pool.pages.row_index(job.sequence.slot, 0, 0) + row,
          plan.own_high, plan.own_low};
}
constexpr int32_t stored_tokens(const TokenRow& row) {
  return row.counts.high + row.counts.low + row.open;
}

// Visits all stored tokens, divided among the block's threads: visit(token score).
template <class Visit>
TESSERA_DEVICE void each_stored(const TokenRow& row, Visit&& visit) {
  for (int32_t i = simt::thread(); i < row.counts.high + row.open; i += simt::threads()) {
    visit(row.high_token_score(i));
  }
  for (int32_t j = simt::thread(); j < row.counts.low; j += simt::threads()) {
    visit(row.low_token_score(j));
  }
}

// Visits the tokens that a rule may change, divided among the block's threads: visit(token score,
// age, is in the high tier, place in its tier).
template <class Visit>
TESSERA_DEVICE void each_own(const TokenRow& row, Visit&& visit) {
  for (int32_t i = row.own_high + simt::thread(); i < row.counts.high; i += simt::threads()) {
    const TokenAge age = row.age(row.high_token_score(i));
    if (age != TokenAge::kept) {
      visit(row.high_token_score(i), age, true, i);
    }
  }
  for (int32_t j = row.own_low + simt::thread(); j < row.counts.low; j += simt::threads()) {
    if (row.low_token_score(j).position >= row.sinks) {
      visit(row.low_token_score(j), TokenAge::old, false, j);
    }
  }
}

// ---- order statistics, by a block. No key is sorted or stored: a cutoff is found bit by bit from
// the highest bit, with one pass over the token scores for each bit. Sums have a fixed order.

struct BlockSums {
  simt::OfWarps<int32_t> counts;
  simt::OfWarps<double> masses;
};
TESSERA_DEVICE simt::OfWarps<int32_t>& memory_of(BlockSums& sums, int32_t) {
  return sums.counts;
}
TESSERA_DEVICE simt::OfWarps<double>& memory_of(BlockSums& sums, double) {
  return sums.masses;
}

// Returns: the highest key such that the weights of all lower keys sum to at most `limit`.
// each(visit): calls visit(key, weight) for the thread's keys. With weights of 1 the result is the
// key of rank `limit`, counted from 0 at the lowest.
// Requires: all threads of the block call it.
template <class T, class Each>
TESSERA_DEVICE TokenKey highest_cutoff(T limit, BlockSums& sums, Each&& each) {
  TokenKey cut = kLowestKey;
  for (int32_t bit = kKeyBits - 1; bit >= 0; --bit) {
    const TokenKey candidate = cut | TokenKey{1} << bit;
    T below = 0;
    each([&](TokenKey key, T weight) { below += key < candidate ? weight : T{0}; });
    if (simt::block_total(below, memory_of(sums, T{})) <= limit) {
      cut = candidate;
    }
  }
  return cut;
}

// Returns: the cutoff that exactly the best `best` of `all` keys reach. each(visit): calls
// visit(key) for the thread's keys.
template <class Each>
TESSERA_DEVICE TokenKey cut_above_worst(int32_t best, int32_t all, BlockSums& sums, Each&& each) {
  if (best <= 0) {
    return kAboveAllKeys;
  }
  if (best >= all) {
    return kLowestKey;
  }
  return highest_cutoff<int32_t>(all - best, sums,
                                 [&](auto&& visit) { each([&](TokenKey key) { visit(key, 1); }); });
}

// ---- parts of a call, in order (launched, not waited for)
void prepare_rows(const CompressJob& job, Stream stream);   // finds shared pages; pools scores
void allocate_rows(const CompressJob& job, Stream stream);  // writes scratch.budgets
void plan_rows(const CompressJob& job, Stream stream);
void compact_rows(const CompressJob& job, Stream stream);

inline constexpr int32_t kPlanThreads = 128;

}  // namespace tessera::cuda
