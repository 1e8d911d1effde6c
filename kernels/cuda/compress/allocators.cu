#include "kernels/cuda/compress/job.h"
#include "kernels/kv/row_budget.h"

namespace tessera::cuda {
namespace {

using namespace simt;

// One block, a thread for each row.
TESSERA_KERNEL(kPlanThreads) budgets_kernel(CompressJob job) {
  const bool profiled = job.sequence.policy.reads_profile();
  for (int32_t row = thread(); row < job_rows(job); row += kPlanThreads) {
    job.scratch.budgets[row] = budget_of_row(
        job.sequence, job.row_budget, profiled ? job.pool.head_profiles[row] : HeadProfile());
  }
}

// ---- Whole pages, across all rows. The next page that a row evicts holds its worst
// tokens: first as many as its last page holds, then a full page each time. The key of a page is
// the best key among them.
//
// Returns: number of the row's pages with a key below some key, if `below` own tokens are below it.
TESSERA_DEVICE int32_t pages_below(const TokenRow& row, int32_t below, int32_t capacity) {
  const int32_t first = (row.counts.high + capacity - 1) % capacity + 1;
  const int32_t pages = below < first ? 0 : (below - first) / capacity + 1;
  return row.counts.high == 0 ? 0 : pages < row.pages.row_pages ? pages : row.pages.row_pages;
}

TESSERA_DEVICE int32_t capacity_of(const CompressJob& job) {
  return job.pool.pages.layouts[job.sequence.tiers.high].capacity;
}

// Returns: number of pages to evict, all rows together.
TESSERA_DEVICE int32_t pages_to_evict(const CompressJob& job, BlockSums& sums) {
  const int32_t capacity = capacity_of(job);
  const KvRow* counts = job.pool.pages.rows + job.pool.pages.row_index(job.sequence.slot, 0, 0);
  int32_t held = 0;
  for (int32_t row = thread(); row < job_rows(job); row += threads()) {
    held += (counts[row].high + capacity - 1) / capacity;
  }
  const int32_t closed = job.row_budget - job.sequence.tokens % kKvGroup;
  return block_total(held, sums.counts) - job_rows(job) * ((closed > 0 ? closed : 0) / capacity);
}

// The cutoff for whole pages is found bit by bit, as in highest_cutoff(), but over all rows
// together. Step s decides one bit from the counts of step s - 1, and counts for the next bit.
// page_counts holds two alternating arrays of counts, then pages below the cutoff and pages at it.
TESSERA_DEVICE int32_t* counts_of_step(const CompressJob& job, int32_t step) {
  return job.scratch.page_counts + step % 2 * job_rows(job);
}
TESSERA_KERNEL(kPlanThreads) pages_kernel(CompressJob job, int32_t step) {
  BlockSums& sums = shared<BlockSums>();
  const int32_t evict = pages_to_evict(job, sums);
  TokenKey cut = kLowestKey;
  if (step > 0) {
    int32_t below = 0;
    for (int32_t row = thread(); row < job_rows(job); row += kPlanThreads) {
      below += counts_of_step(job, step - 1)[row];
    }
    const TokenKey before = job.scratch.page_cutoffs[step - 1];
    const bool passes = block_total(below, sums.counts) < evict;
    cut = passes ? before | TokenKey{1} << (kKeyBits - step) : before;
  }
  const TokenRow row = token_row(job, block_x());
  const auto count = [&](TokenKey key) {
    int32_t below = 0;
    each_own(row, [&](const KvTokenScore& token_score, TokenAge, bool, int32_t) {
      below += job.significance.key(token_score) < key ? 1 : 0;
    });
    return pages_below(row, block_total(below, sums.counts), capacity_of(job));
  };
  if (step < kKeyBits) {
    const int32_t below = count(cut | TokenKey{1} << (kKeyBits - 1 - step));
    if (thread() == 0) {
      counts_of_step(job, step)[block_x()] = below;
    }
  } else {
    const int32_t below = count(cut);
    const int32_t until = cut == kAboveAllKeys ? below : count(cut + 1);
    if (thread() == 0) {
      int32_t* counts = job.scratch.page_counts + 2 * job_rows(job);
      counts[block_x()] = below;
      counts[job_rows(job) + block_x()] = until - below;
    }
  }
  if (block_x() == 0 && thread() == 0) {
    job.scratch.page_cutoffs[step] = cut;
  }
}

// Pages at the cutoff itself are evicted from the first rows on, until there are enough. One block.
TESSERA_KERNEL(kPlanThreads) page_budgets_kernel(CompressJob job) {
  BlockSums& sums = shared<BlockSums>();
  const int32_t rows = job_rows(job);
  const int32_t capacity = capacity_of(job);
  const int32_t* below = job.scratch.page_counts + 2 * rows;
  const int32_t evict = pages_to_evict(job, sums);
  int32_t gone = 0;
  for (int32_t row = thread(); row < rows; row += kPlanThreads) {
    gone += below[row];
  }
  int32_t ties = evict - block_total(gone, sums.counts);
  for (int32_t first = 0; first < rows; first += kPlanThreads) {
    const int32_t row = first + thread();
    const int32_t at_cutoff = row < rows ? below[rows + row] : 0;
    const Place place = block_place(at_cutoff, sums.counts);
    if (row < rows) {
      const int32_t left = ties - place.first;
      const int32_t of_ties = left < 0 ? 0 : left < at_cutoff ? left : at_cutoff;
      const int32_t pages = evict > 0 ? below[row] + of_ties : 0;
      const int32_t high = token_row(job, row).counts.high;
      const int32_t kept = ((high + capacity - 1) / capacity - pages) * capacity;
      job.scratch.budgets[row] = (pages > 0 ? kept : high) + job.sequence.tokens % kKvGroup;
    }
    ties -= place.all;
  }
}

void allocate_pages(const CompressJob& job, Stream stream) {
  const LaunchShape rows{
      .grid_x = job_rows(job), .threads = kPlanThreads, .shared_bytes = sizeof(BlockSums)};
  for (int32_t step = 0; step <= kKeyBits; ++step) {
    launch(stream, rows, pages_kernel, job, step);
  }
  launch(stream, {.threads = kPlanThreads, .shared_bytes = sizeof(BlockSums)}, page_budgets_kernel,
         job);
}

}  // namespace

void allocate_rows(const CompressJob& job, Stream stream) {
  if (job.sequence.policy.allocates(KvAllocator::pages)) {
    allocate_pages(job, stream);
    return;
  }
  TESSERA_CHECK(!job.sequence.policy.reads_profile() || job.pool.head_profiles != nullptr,
                "a model without a profile");
  launch(stream, {.threads = kPlanThreads}, budgets_kernel, job);
}

}  // namespace tessera::cuda
