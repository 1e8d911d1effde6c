#include "base/check.h"
#include "kernels/cpu/attention/row_tokens.h"
#include "kernels/cpu/simd/limits.h"
#include "kernels/kv/key_sketch.h"

namespace tessera {
namespace {

void check_selection(const AttentionArgs& args, const SequenceSpan& span) {
  const KvPagesView& pages = args.pages;
  TESSERA_CHECK(
      has_key_sketch(pages, pages.layouts[span.tiers.high]) && has_sketches(pages.head_dim),
      "attention: tiles are selected by key sketches, which the arena lacks");
  TESSERA_CHECK(!leaves_attention_weights(args, static_cast<size_t>(&span - args.sequences.data())),
                "attention: tiles that are not read leave no weights");
  TESSERA_CHECK(span.read_tiles >= kMinReadTiles,
                "attention: the first and the last tile of each tier are always read");
}

}  // namespace

void check_attention(const AttentionArgs& args) {
  const KvPagesView& pages = args.pages;
  check_layout(pages.residual_layout);
  const KvFormat residual = pages.residual_layout.format;
  TESSERA_CHECK(
      (residual.is_floats() || residual == kKvK8V8) && pages.residual_layout.capacity == kKvGroup,
      "attention: the open group is of floats, or of codes of 8 bits");
  TESSERA_CHECK(residual.is_floats() ||
                    reinterpret_cast<uintptr_t>(args.dense.data()) % KvPageLayout::kLineBytes == 0,
                "attention: dense groups of codes begin at a line");
  TESSERA_CHECK(args.query_heads > 0 && args.query_heads % pages.kv_heads == 0,
                "attention: query heads are a multiple of KV heads");
  TESSERA_CHECK(args.queries.cols == int64_t{args.query_heads} * pages.head_dim &&
                    args.out.cols == args.queries.cols && args.out.rows == args.queries.rows,
                "attention: shapes of queries and out");
  TESSERA_CHECK(args.log_sums.data == nullptr || (args.log_sums.rows == args.queries.rows &&
                                                  args.log_sums.cols == args.query_heads),
                "attention: shape of log_sums");
  TESSERA_CHECK(args.scorings.empty() || args.scorings.size() == args.sequences.size(),
                "attention: a scoring for each sequence");
  TESSERA_CHECK(args.scorings.empty() || (args.sliding_window == 0 &&
                                          args.query_heads / pages.kv_heads <= kMaxScoredHeads),
                "attention: scores need full attention and a smaller gqa_ratio");
  int64_t dense = 0;
  for (const SequenceSpan& span : args.sequences) {
    check_layout(pages.layouts[span.tiers.high]);
    check_layout(pages.layouts[span.tiers.low]);
    TESSERA_CHECK(
        span.count > 0 && span.first_row >= 0 && span.first_row + span.count <= args.queries.rows,
        "attention: a sequence's rows");
    TESSERA_CHECK(span.context >= 0, "attention: a sequence's context");
    TESSERA_CHECK(span.newest == 0 || residual.is_floats(),
                  "attention: dense newest tokens need residual buffers of floats");
    TESSERA_CHECK(span.newest == 0 || span.count == 1 || span.context + span.count <= span.prompt,
                  "attention: dense newest tokens need one generated token a step");
    TESSERA_CHECK(
        span.read_tiles == 0 || span.count == 1 || span.context + span.count <= span.prompt,
        "attention: selected tiles need one generated token a step");
    if (selects(args, span)) {
      check_selection(args, span);
    }
    dense += dense_groups(span);
  }
  TESSERA_CHECK(dense * pages.kv_heads * pages.residual_layout.page_bytes <=
                    static_cast<int64_t>(args.dense.size()),
                "attention: dense groups are missing");
}

}  // namespace tessera
