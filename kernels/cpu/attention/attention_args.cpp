#include <algorithm>

#include "kernels/check.h"
#include "kernels/cpu/attention/limits.h"
#include "kernels/cpu/attention/row_tokens.h"

namespace tessera {
namespace {

int64_t bytes_of(const KvPageLayout& layout, int64_t tokens) {
  return tokens * layout.tile_bytes() / KvPageLayout::kKeyTile;
}

// Tokens of the closed groups that are seen by some query of the span's last group.
KvRow seen_closed(const AttentionArgs& args, const SequenceSpan& span, int32_t kv_head) {
  const RowTokens tokens = row_tokens(args, span, 0, kv_head, span.last_group());
  const int32_t first = first_visible(args, span.context);
  return {std::max(0, tokens.high - first), tokens.low};
}

}  // namespace

int64_t AttentionArgs::bytes() const {
  int64_t sum = 0;
  for (const SequenceSpan& span : sequences) {
    const int32_t first_dense =
        std::max(span.closed_before() * kKvGroup, first_visible(*this, span.context));
    for (int32_t head = 0; head < pages.kv_heads; ++head) {
      const KvRow closed = seen_closed(*this, span, head);
      sum += bytes_of(pages.layouts[span.tiers.high], closed.high) +
             bytes_of(pages.layouts[span.tiers.low], closed.low) +
             bytes_of(pages.window_layout, span.context + span.count - first_dense);
    }
  }
  return sum;
}

int64_t AttentionArgs::flops() const {
  int64_t scores = 0;  // of one head of each group of query heads
  for (const SequenceSpan& span : sequences) {
    for (int32_t position = span.context; position < span.context + span.count; ++position) {
      const int32_t group = position / kKvGroup;
      for (int32_t head = 0; head < pages.kv_heads; ++head) {
        const RowTokens tokens = row_tokens(*this, span, 0, head, group);
        const int64_t seen = int64_t{tokens.high} + tokens.low + position + 1 - group * kKvGroup;
        scores += window > 0 ? std::min<int64_t>(seen, window) : seen;
      }
    }
  }
  return 4 * scores * (query_heads / pages.kv_heads) * pages.head_dim;
}

void check_attention(const AttentionArgs& args) {
  const KvPagesView& pages = args.pages;
  check_layout(pages.window_layout);
  TESSERA_CHECK(!pages.window_layout.format.is_codes() && pages.window_layout.capacity == kKvGroup,
                "attention: the open group is dense");
  TESSERA_CHECK(args.query_heads > 0 && args.query_heads % pages.kv_heads == 0,
                "attention: query heads are a multiple of KV heads");
  TESSERA_CHECK(args.queries.cols == int64_t{args.query_heads} * pages.head_dim &&
                    args.out.cols == args.queries.cols && args.out.rows == args.queries.rows,
                "attention: shapes of queries and out");
  TESSERA_CHECK(args.log_sums.data == nullptr || (args.log_sums.rows == args.queries.rows &&
                                                  args.log_sums.cols == args.query_heads),
                "attention: shape of log_sums");
  int64_t dense = 0;
  for (const SequenceSpan& span : args.sequences) {
    check_layout(pages.layouts[span.tiers.high]);
    check_layout(pages.layouts[span.tiers.low]);
    TESSERA_CHECK(
        span.count > 0 && span.first_row >= 0 && span.first_row + span.count <= args.queries.rows,
        "attention: a sequence's rows");
    TESSERA_CHECK(span.context >= 0, "attention: a sequence's context");
    TESSERA_CHECK(args.window == 0 || span.tiers.high == span.tiers.low,
                  "attention: a window needs rows of one tier");
    dense += dense_groups(span);
  }
  TESSERA_CHECK(dense * pages.kv_heads * pages.window_layout.page_bytes <=
                    static_cast<int64_t>(args.dense.size()),
                "attention: dense groups are missing");
}

}  // namespace tessera
