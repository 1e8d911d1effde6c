#include "kernels/check.h"
#include "kernels/cuda/compress/job.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/pages/sparse_codec.h"
#include "kernels/kv/row_budget.h"

// Compresses sequences one after the other, with a dozen launches each. The host plans everything
// that does not depend on tokens: the mean budget, and its distribution by `uniform` and `pyramid`.
// The allocators that read scores are here.

namespace tessera::cuda {
namespace {

using namespace simt;

// Ada-KV, one block for each layer: the tokens with the highest scores of its heads share its
// budget.
TESSERA_KERNEL(kPlanThreads) heads_kernel(CompressJob job) {
  BlockSums& sums = shared<BlockSums>();
  const int32_t heads = job.pool.pages.kv_heads;
  const int32_t first_row = block_x() * heads;
  const auto each_key = [&](auto&& visit) {
    for (int32_t head = 0; head < heads; ++head) {
      each_own(token_row(job, first_row + head),
               [&](const KvTokenScore& token_score, TokenAge, bool, int32_t) {
                 visit(job.significance.key(token_score));
               });
    }
  };
  int32_t own = 0;
  each_key([&](TokenKey) { ++own; });
  own = block_total(own, sums.counts);
  int32_t kept_anyway = -own;
  for (int32_t head = 0; head < heads; ++head) {
    kept_anyway += stored_tokens(token_row(job, first_row + head));
  }
  const int32_t left = heads * job.row_budget - kept_anyway;
  const TokenKey cut = cut_above_worst(left < own ? left : own, own, sums, each_key);
  for (int32_t head = 0; head < heads; ++head) {
    const TokenRow row = token_row(job, first_row + head);
    int32_t lost = 0;
    each_own(row, [&](const KvTokenScore& token_score, TokenAge, bool, int32_t) {
      lost += job.significance.key(token_score) < cut ? 1 : 0;
    });
    const double adaptive = stored_tokens(row) - block_total(lost, sums.counts);
    const double floor = job.sequence.policy.head_floor;
    const double budget = unfused(floor, job.row_budget) + unfused(1 - floor, adaptive);
    if (thread() == 0) {
      job.scratch.budgets[first_row + head] =
          budget < job.sequence.tokens ? static_cast<int32_t>(budget) : job.sequence.tokens;
    }
  }
}

// ---- KV-Compress: whole pages, across all rows. The next page that a row evicts holds its worst
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

void spread_by_heads(const CompressJob& job, Stream stream) {
  launch(
      stream,
      {.grid_x = job.pool.pages.layers, .threads = kPlanThreads, .shared_bytes = sizeof(BlockSums)},
      heads_kernel, job);
}

void spread_by_pages(const CompressJob& job, Stream stream) {
  const LaunchShape rows{
      .grid_x = job_rows(job), .threads = kPlanThreads, .shared_bytes = sizeof(BlockSums)};
  for (int32_t step = 0; step <= kKeyBits; ++step) {
    launch(stream, rows, pages_kernel, job, step);
  }
  launch(stream, {.threads = kPlanThreads, .shared_bytes = sizeof(BlockSums)}, page_budgets_kernel,
         job);
}

// ---- the call

// Layout of the scratch memory, for one sequence at a time. With null memory only `bytes` is
// computed.
struct Parts {
  Parts(const KvPagesView& pages, std::byte* memory) {
    const int64_t rows = int64_t{pages.layers} * pages.kv_heads;
    scratch.plans = cut<RowPlan>(memory, rows);
    scratch.decisions = cut<TokenDecision>(memory, rows * pages.row_token_scores);
    scratch.budgets = cut<int32_t>(memory, rows);
    scratch.page_counts = cut<int32_t>(memory, 4 * rows);
    scratch.page_cutoffs = cut<TokenKey>(memory, kKeyBits + 1);
  }

  CompressScratch scratch;
  int64_t bytes = 0;

 private:
  template <class T>
  T* cut(std::byte* memory, int64_t count) {
    T* part = memory == nullptr ? nullptr : reinterpret_cast<T*>(memory + bytes);
    bytes += round_up(count * int64_t{sizeof(T)}, 64);
    return part;
  }
};

// Returns: a budget for each row, in device memory. `host`: memory for as many numbers.
const int32_t* spread(const CompressJob& job, std::span<int32_t> host, Stream stream) {
  switch (job.sequence.policy.allocator) {
    case KvAllocator::heads:
      spread_by_heads(job, stream);
      return job.scratch.budgets;
    case KvAllocator::pages:
      spread_by_pages(job, stream);
      return job.scratch.budgets;
    default:
      allocate({.pool = job.pool,
                .sequence = job.sequence,
                .significance = job.significance,
                .row_budget = job.row_budget,
                .keys = {},
                .page_keys = {},
                .budgets = host,
                .stream = stream});
      return simt::mirror(std::span<const int32_t>(host), stream);
  }
}

void compress(CompressJob& job, std::span<int32_t> host, Stream stream) {
  prepare_rows(job, stream);
  if (job.sequence.policy.rule == KvRule::budget) {
    job.row_budget = row_budget(job.pool, job.sequence);
    job.budgets = spread(job, host, stream);
  }
  plan_rows(job, stream);
  compact_rows(job, stream);
}

void check(const KvCompressArgs& args, const KvCompression& sequence) {
  check_compression(args.pool, sequence);
  const KvPagesView& pages = args.pool.pages;
  const KvFormat high = pages.layouts[sequence.tiers.high].format;
  const KvFormat low = pages.layouts[sequence.tiers.low].format;
  TESSERA_CHECK(!low.is_floats() || low == high,
                "kv_compress: to a format of codes or a sparse one");
  TESSERA_CHECK(!low.is_sparse() || pages.head_dim <= kMaxSparseDim,
                "the CUDA backend serves sparse formats with head dimensions up to 128");
}

}  // namespace

int64_t kv_compress_scratch_bytes(const KvPagesView& pages, Stream) {
  return Parts(pages, nullptr).bytes;
}

void kv_compress(const KvCompressArgs& args, Stream stream) {
  TESSERA_CHECK(args.results.size() == args.sequences.size(), "kv_compress: number of results");
  const Parts parts(args.pool.pages, args.scratch.data());
  TESSERA_CHECK(parts.bytes <= std::ssize(args.scratch), "kv_compress: scratch is too small");
  // Results go through memory that host and device can access. The host's budgets of a sequence
  // follow them.
  const std::span<std::byte> shared = simt::staging(stream);
  auto* results = reinterpret_cast<KvCompressed*>(shared.data());
  const size_t rows = static_cast<size_t>(args.pool.pages.layers * args.pool.pages.kv_heads);
  TESSERA_CHECK(args.results.size_bytes() + rows * sizeof(int32_t) <= shared.size(),
                "kv_compress: more sequences than their results have room for");
  const std::span<int32_t> budgets(
      reinterpret_cast<int32_t*>(shared.data() + args.results.size_bytes()), rows);
  for (size_t i = 0; i < args.sequences.size(); ++i) {
    check(args, args.sequences[i]);
    CompressJob job{.pool = args.pool,
                    .sequence = args.sequences[i],
                    .significance = Significance(args.sequences[i]),
                    .row_budget = 0,
                    .budgets = nullptr,
                    .scratch = parts.scratch,
                    .result = results + i};
    compress(job, budgets, stream);
  }
  simt::wait(stream);
  for (size_t i = 0; i < args.sequences.size(); ++i) {
    args.results[i] = results[i];
  }
}

}  // namespace tessera::cuda
