#include "base/check.h"
#include "kernels/cuda/compress/job.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/pages/sparse_codec.h"
#include "kernels/kv/row_budget.h"

// Compresses sequences one after the other, with a dozen launches each. The host computes the mean
// budget of a row; kernels do the rest.

namespace tessera::cuda {
namespace {

using namespace simt;

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

void compress(CompressJob& job, Stream stream) {
  prepare_rows(job, stream);
  if (divides_budget(job.sequence.policy.rule())) {
    job.row_budget = row_budget(job.pool, job.sequence);
    job.budgets = job.scratch.budgets;
    allocate_rows(job, stream);
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
  // Results go through memory that host and device can access.
  const std::span<std::byte> shared = simt::staging(stream);
  auto* results = reinterpret_cast<KvCompressed*>(shared.data());
  TESSERA_CHECK(args.results.size_bytes() <= shared.size(),
                "kv_compress: more sequences than their results have room for");
  for (size_t i = 0; i < args.sequences.size(); ++i) {
    check(args, args.sequences[i]);
    CompressJob job{.pool = args.pool,
                    .sequence = args.sequences[i],
                    .significance = Significance(args.sequences[i]),
                    .row_budget = 0,
                    .budgets = nullptr,
                    .scratch = parts.scratch,
                    .result = results + i};
    compress(job, stream);
  }
  simt::wait(stream);
  for (size_t i = 0; i < args.sequences.size(); ++i) {
    args.results[i] = results[i];
  }
}

}  // namespace tessera::cuda
