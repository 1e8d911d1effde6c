#include "kernels/cpu/compress/query_sums.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/cpu/threads/thread_pool.h"

namespace tessera {
namespace {

void add_row(const KvScoreArgs& args, const SequenceSpan& span, int32_t kv_head) {
  const KvPagesView& pages = args.pages;
  const int64_t row = pages.row_index(span.slot, args.layer, kv_head);
  const int32_t heads = args.query_heads / pages.kv_heads;
  const int32_t first = std::max(span.context, (span.last_group() - 1) * kKvGroup);
  for (int32_t position = first; position < span.context + span.count; ++position) {
    float* sums = pages.query_sum(row, position / kKvGroup);
    if (position % kKvGroup == 0) {
      std::fill_n(sums, pages.head_dim, 0.0f);
    }
    const float* queries = args.queries.row(span.first_row + position - span.context).data() +
                           int64_t{kv_head} * heads * pages.head_dim;
    for (int32_t head = 0; head < heads; ++head, queries += pages.head_dim) {
      for (int32_t channel = 0; channel < pages.head_dim; ++channel) {
        sums[channel] += std::abs(queries[channel]);
      }
    }
  }
}

}  // namespace

void add_query_sums(const KvScoreArgs& args, Stream stream) {
  if (std::none_of(args.scorings.begin(), args.scorings.end(),
                   [](const KvScoring& scoring) { return scoring.query_sums; })) {
    return;
  }
  TESSERA_CHECK(args.pages.query_sums != nullptr, "kv_score: no place for sums of queries");
  const int64_t heads = args.pages.kv_heads;
  ThreadPool::of(stream).parallel_for(
      std::ssize(args.sequences) * heads, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t item = begin; item < end; ++item) {
          const auto sequence = static_cast<size_t>(item / heads);
          if (args.scorings[sequence].query_sums) {
            add_row(args, args.sequences[sequence], static_cast<int32_t>(item % heads));
          }
        }
      });
}

void recent_query_weights(const KvPagesView& pages, int64_t row, int32_t tokens, float* weights) {
  for (int32_t channel = 0; channel < pages.head_dim; ++channel) {
    weights[channel] = recent_query_weight(pages, row, tokens, channel);
  }
}

}  // namespace tessera
