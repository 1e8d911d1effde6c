#include "base/check.h"
#include "kernels/cuda/compress/query_sums.h"
#include "kernels/cuda/simt/simt.h"
#include "kernels/kv/kv_page.h"

namespace tessera::cuda {
namespace {

using namespace simt;

// Sums of queries, as in kernels/cpu/compress/query_sums.h. A channel's sum runs over
// positions, then over query heads. Of a prompt only the newest closed group and the open one are
// added. One block for each (sequence, KV head), one thread for each channel.
constexpr int32_t kSumThreads = 128;
TESSERA_KERNEL(kSumThreads)
query_sums_kernel(KvScoreArgs args, const SequenceSpan* sequences, const KvScoring* scorings) {
  const KvPagesView& pages = args.pages;
  const SequenceSpan span = sequences[block_x()];
  const int32_t channel = thread();
  if (!scorings[block_x()].query_sums || channel >= pages.head_dim) {
    return;
  }
  const int64_t row = pages.row_index(span.slot, args.layer, block_y());
  const int32_t heads = args.query_heads / pages.kv_heads;
  const int32_t newest = (span.last_group() - 1) * kKvGroup;
  for (int32_t position = span.context > newest ? span.context : newest;
       position < span.context + span.count; ++position) {
    float& kept = pages.query_sum(row, position / kKvGroup)[channel];
    float sum = position % kKvGroup == 0 ? 0.0f : kept;
    const float* query = args.queries.data +
                         (span.first_row + position - span.context) * args.queries.stride +
                         int64_t{block_y()} * heads * pages.head_dim + channel;
    for (int32_t head = 0; head < heads; ++head, query += pages.head_dim) {
      sum += abs(*query);
    }
    kept = sum;
  }
}

}  // namespace

void add_query_sums(const KvScoreArgs& args, Stream stream) {
  bool any = false;
  for (const KvScoring& scoring : args.scorings) {
    any = any || scoring.query_sums;
  }
  if (any) {
    TESSERA_CHECK(args.pages.query_sums != nullptr, "kv_score: no place for sums of queries");
    launch(stream,
           {.grid_x = static_cast<int32_t>(args.sequences.size()),
            .grid_y = args.pages.kv_heads,
            .threads = kSumThreads},
           query_sums_kernel, args, mirror(args.sequences, stream), mirror(args.scorings, stream));
  }
}

}  // namespace tessera::cuda
