#include "bench/op_cost.h"

#include <algorithm>
#include <cstdlib>

#include "kernels/kv/key_sketch.h"
#include "kernels/kv/whole_layers.h"

namespace tessera {
namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kId = sizeof(int32_t);  // bytes of a token id, a position or a page id

constexpr int64_t heads_of(const KvPagesView& pages) {  // KV heads of all layers
  return int64_t{pages.layers} * pages.kv_heads;
}

template <class T>
int64_t matrix_bytes(const MatrixView<T>& matrix) {
  return matrix.rows * matrix.cols * int64_t{sizeof(T)};
}

template <class T>
int64_t elements(const MatrixView<T>& matrix) {
  return matrix.rows * matrix.cols;
}

// Returns: bytes of activations as weights of `format` are multiplied by. Where those are rounded
// ahead, their types and scales are the weights' own.
int64_t activation_bytes(WeightFormat format, int64_t rows, int64_t cols) {
  return weight_bytes(format, rows, cols);
}

}  // namespace

int64_t weight_bytes(WeightFormat format, int64_t rows, int64_t cols) {
  return rows * encoding(format).row_bytes(cols);
}

int64_t kv_token_bytes(const KvPageLayout& layout) {
  return layout.tile_bytes() / KvPageLayout::kKeyTile;
}

int64_t kv_key_bytes(const KvPageLayout& layout) {
  return (layout.key_tile_bytes() + layout.key_scale_tile_bytes() + layout.key_zero_tile_bytes()) /
         KvPageLayout::kKeyTile;
}

OpCost op_cost(const EmbedArgs& args) {
  const WeightFormat format = args.packed != nullptr           ? args.packed->format
                              : args.table_f32.data != nullptr ? WeightFormat::f32
                                                               : WeightFormat::bf16;
  return {.read_bytes =
              std::ssize(args.tokens) * kId + weight_bytes(format, args.out.rows, args.out.cols),
          .written_bytes = matrix_bytes(args.out),
          .flops = 0};
}

// Squares and their sum, then two factors for each element.
OpCost op_cost(const RmsNormArgs& args) {
  return {.read_bytes = matrix_bytes(args.in) + std::ssize(args.weight) * kFloat +
                        (args.accumulate ? matrix_bytes(args.out) : 0),
          .written_bytes = activation_bytes(args.rounded.format, args.in.rows, args.in.cols),
          .flops = 4 * elements(args.in)};
}

OpCost op_cost(const LinearArgs& args) {
  const PackedWeight& weight = *args.weight;
  const WeightFormat in = args.rounded ? weight.format : WeightFormat::f32;
  return {.read_bytes = activation_bytes(in, args.in.rows, args.in.cols) +
                        weight_bytes(weight.format, weight.rows, weight.cols) +
                        (weight.input_order != nullptr ? weight.cols * kId : 0) +
                        std::ssize(args.bias) * kFloat +
                        (args.accumulate ? matrix_bytes(args.out) : 0),
          .written_bytes = matrix_bytes(args.out),
          .flops = 2 * args.in.rows * weight.rows * weight.cols};
}

// Four products and two sums for each pair.
OpCost op_cost(const RopeArgs& args) {
  const int64_t angles = args.heads.rows * (args.rotary_dim / 2);
  const int64_t rotated = elements(args.heads) / args.head_dim * args.rotary_dim;
  return {.read_bytes = (rotated + 2 * angles) * kFloat + std::ssize(args.positions) * kId,
          .written_bytes = rotated * kFloat,
          .flops = 3 * rotated};
}

// An exponential, a sum, a quotient and a product for each element.
OpCost op_cost(const SiluMulArgs& args) {
  const int64_t width = args.gate_up.cols / 2;
  return {.read_bytes = matrix_bytes(args.gate_up),
          .written_bytes = activation_bytes(args.rounded.format, args.gate_up.rows, width),
          .flops = 4 * args.gate_up.rows * width};
}

// An exponential and a sum for each logit, and a quotient for each choice. The largest are found by
// comparison.
OpCost op_cost(const RouteArgs& args) {
  const int64_t choices = args.logits.rows * args.chosen;
  return {.read_bytes = matrix_bytes(args.logits),
          .written_bytes = choices * (2 * kId + kFloat) + std::ssize(args.rows.offsets) * kId,
          .flops = 2 * elements(args.logits) + choices};
}

OpCost op_cost(const ExpertLinearArgs& args) {
  OpCost cost;
  for (size_t expert = 0; expert < args.weights.size(); ++expert) {
    const int64_t rows = args.offsets[expert + 1] - args.offsets[expert];
    if (rows == 0) continue;
    for (const PackedWeight& part : args.weights[expert].all()) {
      cost.read_bytes += weight_bytes(part.format, part.rows, part.cols);
      cost.written_bytes += rows * part.rows * kFloat;
      cost.flops += 2 * rows * part.rows * part.cols;
    }
    cost.read_bytes += rows * args.in.cols * kFloat;
  }
  return cost;
}

// A product and a sum for each element of a choice's row.
OpCost op_cost(const CombineArgs& args) {
  const int64_t choices = args.out.rows * args.chosen;
  const int64_t shared = args.shared.rows;
  const int64_t gates = args.shared_gates.rows;
  return {.read_bytes = choices * (args.in.cols * kFloat + kId + kFloat) +
                        (shared * args.in.cols + gates) * kFloat +
                        (args.accumulate ? matrix_bytes(args.out) : 0),
          .written_bytes = matrix_bytes(args.out),
          .flops = 2 * (choices + shared) * args.in.cols + 3 * gates};
}

// A state is multiplied by its factor, by the key, by what is added, and by the query.
OpCost op_cost(const DeltaRuleArgs& args) {
  constexpr int64_t kFlopsOfState = 7;
  int64_t tokens = 0;
  for (const StateSpan& sequence : args.sequences) tokens += sequence.count;
  const int64_t state = args.states.cols * kFloat;
  const auto sequences = static_cast<int64_t>(args.sequences.size());
  return {
      .read_bytes = sequences * state + tokens * kFloat *
                                            (args.queries.cols + args.keys.cols + args.values.cols +
                                             args.decays.cols + args.rates.cols),
      .written_bytes = sequences * state + tokens * args.out.cols * kFloat,
      .flops = tokens * args.states.cols * kFlopsOfState};
}

// A page id is read in one place and written to another, and the old place is marked empty. An
// allocated page gets an owner; a released page loses one.
OpCost op_cost(const KvResizeArgs& args) {
  const KvPagesView& pages = args.pool.pages;
  const int64_t slot_rows = int64_t{pages.layers} * pages.kv_heads;
  int64_t given = 0;
  int64_t returned = 0;
  for (const int32_t slot : args.released) {
    const int32_t* first = pages.table(slot * slot_rows);
    const int64_t entries = slot_rows * pages.row_pages;
    returned += entries - std::count(first, first + entries, kNoPage);
  }
  for (const KvGrowth& growth : args.grown) {
    const int64_t capacity = pages.layouts[growth.tiers.high].capacity;
    for (int64_t row = growth.slot * slot_rows; row < (growth.slot + 1) * slot_rows; ++row) {
      const int64_t stored = pages.rows[row].high;
      given += div_ceil(stored + growth.tokens, capacity) - div_ceil(stored, capacity);
    }
  }
  return {.read_bytes = (given + 2 * returned) * kId,
          .written_bytes = 3 * (given + returned) * kId,
          .flops = 0};
}

namespace {

// A full page's id is copied and its owner count incremented. A page for the remaining tokens is
// taken from the free list as in kv_resize, and these tokens are copied.
OpCost fork_cost(const KvPageLayout& layout, int64_t tokens) {
  const int64_t whole = tokens / layout.capacity;
  const int64_t rest = tokens % layout.capacity;
  const int64_t taken = rest > 0 ? 1 : 0;
  return {.read_bytes = (2 * whole + taken) * kId + rest * kv_token_bytes(layout),
          .written_bytes = (2 * whole + 3 * taken) * kId + rest * kv_token_bytes(layout),
          .flops = 0};
}

}  // namespace

// Includes the residual buffers.
OpCost op_cost(const KvForkArgs& args) {
  const KvPagesView& pages = args.pool.pages;
  const int64_t slot_rows = int64_t{pages.layers} * pages.kv_heads;
  OpCost sum;
  for (const KvFork& fork : args.forks) {
    for (int64_t row = fork.from * slot_rows; row < (fork.from + 1) * slot_rows; ++row) {
      const KvRow& counts = pages.rows[row];
      const OpCost high = fork_cost(pages.layouts[fork.tiers.high], fork.high_of(counts.high));
      const OpCost low = fork_cost(pages.layouts[fork.tiers.low], counts.low);
      sum.read_bytes += high.read_bytes + low.read_bytes + pages.residual_layout.page_bytes;
      sum.written_bytes +=
          high.written_bytes + low.written_bytes + pages.residual_layout.page_bytes;
    }
  }
  return sum;
}

// Counts, closed tokens, open tokens and token scores of each row.
OpCost op_cost(const KvSnapshotArgs& args) {
  const KvPagesView& pages = args.pool.pages;
  const int64_t slot_rows = int64_t{pages.layers} * pages.kv_heads;
  const KvTiers tiers = args.snapshot.tiers;
  const int64_t open = args.snapshot.tokens % kKvGroup;
  int64_t bytes = 0;
  for (int64_t row = args.snapshot.slot * slot_rows; row < (args.snapshot.slot + 1) * slot_rows;
       ++row) {
    const KvRow& counts = pages.rows[row];
    const int64_t token_scores = pages.scores_all_tokens() ? counts.high + counts.low + open : 0;
    bytes += int64_t{sizeof(KvRow)} + counts.high * kv_token_bytes(pages.layouts[tiers.high]) +
             counts.low * kv_token_bytes(pages.layouts[tiers.low]) +
             open * kv_token_bytes(pages.residual_layout) +
             token_scores * int64_t{sizeof(KvTokenScore)};
  }
  return {.read_bytes = bytes, .written_bytes = bytes, .flops = 0};
}

namespace {

// Returns: the cost that StepRope adds. Keys are read and written anyway, and so are equal tables.
OpCost rope_cost(const KvStoreArgs& args) {
  const StepRope& by = args.rope;
  if (by.rotary_dim == 0) return {};
  const auto cost = [&](const MatrixView<const float>& heads) {
    return op_cost(RopeArgs{.heads = {nullptr, heads.rows, heads.cols, heads.stride},
                            .positions = by.positions,
                            .head_dim = args.pages.head_dim,
                            .rotary_dim = by.rotary_dim});
  };
  OpCost rope = cost(by.queries);
  rope.flops += cost(args.keys).flops;
  const int64_t key_angles = args.keys.rows * by.rotary_dim * kFloat;
  rope.read_bytes += by.key_table.cos != by.query_table.cos ? key_angles : 0;
  return rope;
}

}  // namespace

OpCost op_cost(const PlanAttentionArgs& args) {
  const int64_t rows = std::ssize(args.sequences) * args.pages.kv_heads * args.pages.layers;
  return {.read_bytes = rows * int64_t{sizeof(KvRow)}, .written_bytes = rows * kId, .flops = 0};
}

// Every token is written unquantised. Tokens of groups that close are encoded too, including those
// that an earlier step put into the residual buffer.
OpCost op_cost(const KvStoreArgs& args) {
  const int64_t dense_bytes = kv_token_bytes(args.pages.residual_layout);
  OpCost of_head;
  int64_t tokens = 0;
  for (const SequenceSpan& span : args.sequences) {
    const int64_t closed = int64_t{span.closed_after() - span.closed_before()} * kKvGroup;
    tokens += span.count;
    of_head.read_bytes += closed > 0 ? span.context % kKvGroup * dense_bytes : 0;
    of_head.written_bytes +=
        span.count * dense_bytes + closed * kv_token_bytes(args.pages.layouts[span.tiers.high]);
  }
  const OpCost rope = rope_cost(args);
  return {.read_bytes = tokens * (args.keys.cols + args.values.cols) * kFloat +
                        of_head.read_bytes * args.pages.kv_heads + rope.read_bytes,
          .written_bytes = of_head.written_bytes * args.pages.kv_heads + rope.written_bytes,
          .flops = rope.flops};
}

namespace {

// Returns: first position that a query at `position` sees.
int32_t first_visible(const AttentionArgs& args, int32_t position) {
  return args.sliding_window > 0 ? std::max(0, position + 1 - args.sliding_window) : 0;
}

// Returns: closed tokens that the queries of `group` see.
template <class Args>
KvRow seen_closed(const Args& args, const SequenceSpan& span, int32_t head, int32_t group) {
  const KvRow& row = args.pages.rows[args.pages.row_index(span.slot, args.layer, head)];
  const KvRow seen{row.high - (span.closed_after() - group) * kKvGroup, row.low};
  if (!span.selects() || args.layer < kWholeLayers) {
    return seen;
  }
  const int32_t read = std::min(seen.high + seen.low, span.read_tiles * kAttentionTile);
  return {std::max(0, read - seen.low), std::min(read, seen.low)};
}

// Returns: bytes of the key sketches by which a query selects tiles, of one row.
int64_t sketch_bytes(const AttentionArgs& args, const SequenceSpan& span, int32_t head) {
  if (!span.selects() || args.layer < kWholeLayers) {
    return 0;
  }
  const KvPagesView& pages = args.pages;
  const KvRow& row = pages.rows[pages.row_index(span.slot, args.layer, head)];
  const auto of_tier = [&](int32_t tokens, const KvPageLayout& layout) {
    return div_ceil(tokens, layout.capacity) *
           KeySketchLayout{layout.head_dim, layout.capacity}.bytes();
  };
  return of_tier(row.high, pages.layouts[span.tiers.high]) +
         of_tier(row.low, pages.layouts[span.tiers.low]);
}

int64_t bytes_seen(const AttentionArgs& args, const SequenceSpan& span, int32_t head) {
  const KvPagesView& pages = args.pages;
  const int32_t first = first_visible(args, span.context);
  const KvRow closed = seen_closed(args, span, head, span.closed_before());
  const int32_t dense =
      span.context + span.count - std::max(span.closed_before() * kKvGroup, first);
  return sketch_bytes(args, span, head) +
         std::max(0, closed.high - first) * kv_token_bytes(pages.layouts[span.tiers.high]) +
         closed.low * kv_token_bytes(pages.layouts[span.tiers.low]) +
         dense * kv_token_bytes(pages.residual_layout);
}

int64_t scores(const AttentionArgs& args, const SequenceSpan& span, int32_t head) {
  int64_t sum = 0;
  for (int32_t position = span.context; position < span.context + span.count; ++position) {
    const int32_t group = position / kKvGroup;
    const KvRow closed = seen_closed(args, span, head, group);
    const int64_t seen = int64_t{closed.high} + closed.low + position + 1 - group * kKvGroup;
    sum += args.sliding_window > 0 ? std::min<int64_t>(seen, args.sliding_window) : seen;
  }
  return sum;
}

}  // namespace

// One product with a key and one with a value for each query, head and visible token. For groups
// that the step closes, only the unquantised form must be read. Weights are written if kv_score
// needs them.
OpCost op_cost(const AttentionArgs& args) {
  const KvPagesView& pages = args.pages;
  const int64_t width = int64_t{args.query_heads} * pages.head_dim;
  OpCost cost;
  for (const SequenceSpan& span : args.sequences) {
    cost.read_bytes += span.count * width * kFloat;
    cost.written_bytes += span.count * width * kFloat;
    const bool weights =
        leaves_attention_weights(args, static_cast<size_t>(&span - args.sequences.data()));
    for (int32_t head = 0; head < pages.kv_heads; ++head) {
      cost.read_bytes += bytes_seen(args, span, head);
      const int64_t seen = scores(args, span, head);
      cost.flops += 4 * seen * (width / pages.kv_heads);
      cost.written_bytes += weights ? seen * (args.query_heads / pages.kv_heads) * kFloat : 0;
    }
  }
  return cost;
}

namespace {

// Cost for one sequence and KV head of the queries at positions [begin, end).
OpCost score_cost(const KvScoreArgs& args, size_t sequence, int32_t head, int32_t begin,
                  int32_t end) {
  const SequenceSpan& span = args.sequences[sequence];
  const bool weights = leaves_attention_weights(args, sequence);
  const KvPagesView& pages = args.pages;
  const int32_t group = begin / kKvGroup;
  const KvRow closed = seen_closed(args, span, head, group);
  const int64_t dense = end - group * kKvGroup;
  const int64_t older = closed.high + closed.low + dense - (end - span.context);
  const int64_t heads = args.query_heads / pages.kv_heads;
  OpCost cost;
  cost.written_bytes = older * kFloat;
  if (weights) {
    cost.read_bytes = (closed.high + closed.low + dense) * heads * kFloat + older * kFloat;
    return cost;
  }
  cost.read_bytes = (end - begin) * heads * pages.head_dim * kFloat +
                    closed.high * kv_key_bytes(pages.layouts[span.tiers.high]) +
                    closed.low * kv_key_bytes(pages.layouts[span.tiers.low]) +
                    dense * kv_key_bytes(pages.residual_layout) + older * kFloat;
  int64_t received = 0;
  for (int32_t query = begin; query < end; ++query) {
    const KvRow seen = seen_closed(args, span, head, query / kKvGroup);
    received += int64_t{seen.high} + seen.low + query % kKvGroup + 1;
  }
  cost.flops = 2 * received * heads * pages.head_dim;
  return cost;
}

// The same with KvScoring::section: every query sees the whole section, in pages.
OpCost section_cost(const KvScoreArgs& args, size_t sequence, int32_t begin, int32_t end) {
  const KvPagesView& pages = args.pages;
  const SequenceSpan& span = args.sequences[sequence];
  const int64_t section = args.scorings[sequence].section;
  const int64_t heads = args.query_heads / pages.kv_heads;
  const int64_t entries = section * int64_t{sizeof(KvTokenScore)};
  OpCost cost{.read_bytes = entries, .written_bytes = entries};
  if (leaves_attention_weights(args, sequence)) {
    cost.read_bytes += section * heads * kFloat;
    return cost;
  }
  cost.read_bytes += (end - begin) * heads * pages.head_dim * kFloat +
                     section * kv_key_bytes(pages.layouts[span.tiers.high]);
  cost.flops = 2 * (end - begin) * section * heads * pages.head_dim;
  return cost;
}

// Counts the queries of the newest closed group and the open one.
OpCost query_sum_cost(const KvScoreArgs& args, const SequenceSpan& span) {
  const int64_t end = span.context + span.count;
  const int64_t queries =
      end - std::max<int64_t>(span.context, int64_t{span.last_group() - 1} * kKvGroup);
  const int64_t sums = int64_t{args.pages.kv_heads} * args.pages.head_dim * kFloat;
  OpCost cost;
  cost.read_bytes = queries * args.query_heads * args.pages.head_dim * kFloat + sums;
  cost.written_bytes = sums;
  cost.flops = queries * args.query_heads * args.pages.head_dim;
  return cost;
}

}  // namespace

// The new tokens' scores are written. A counting query is multiplied with the keys that it sees,
// and the scores of older tokens are read and written. If attention left its weights, these are
// read instead of multiplying again.
OpCost op_cost(const KvScoreArgs& args) {
  const KvPagesView& pages = args.pages;
  OpCost sum;
  for (size_t i = 0; i < args.sequences.size(); ++i) {
    const SequenceSpan& span = args.sequences[i];
    const KvScoring& scoring = args.scorings[i];
    if (!scoring.token_scores) {
      continue;
    }
    sum.written_bytes +=
        scoring.section > 0 ? 0 : span.count * pages.kv_heads * int64_t{sizeof(KvTokenScore)};
    if (scoring.query_sums) {
      const OpCost cost = query_sum_cost(args, span);
      sum.read_bytes += cost.read_bytes;
      sum.written_bytes += cost.written_bytes;
      sum.flops += cost.flops;
    }
    const int32_t begin = std::max(span.context, scoring.begin);
    const int32_t end = std::min(span.context + span.count, scoring.end);
    if (begin >= end) {
      continue;
    }
    sum.read_bytes += (end - begin) * int64_t{args.query_heads} * kFloat;
    for (int32_t head = 0; head < pages.kv_heads; ++head) {
      const OpCost cost = scoring.section > 0 ? section_cost(args, i, begin, end)
                                              : score_cost(args, i, head, begin, end);
      sum.read_bytes += cost.read_bytes;
      sum.written_bytes += cost.written_bytes;
      sum.flops += cost.flops;
    }
  }
  return sum;
}

OpCost op_cost(const KvCompressArgs& args) {
  const KvPagesView& pages = args.pool.pages;
  OpCost sum;
  for (size_t i = 0; i < args.sequences.size(); ++i) {
    const KvCompression& sequence = args.sequences[i];
    const KvCompressed& result = args.results[i];
    int64_t token_scores = result.dropped + heads_of(pages) * (sequence.tokens % kKvGroup);
    for (int64_t row = 0; sequence.section == 0 && row < heads_of(pages); ++row) {
      const KvRow& left = pages.rows[sequence.slot * heads_of(pages) + row];
      token_scores += left.high + left.low;
    }
    if (sequence.section > 0) {
      token_scores = heads_of(pages) * sequence.section;
    }
    const int64_t freed = std::max<int64_t>(0, result.pages_freed);
    const int64_t counts = heads_of(pages) * int64_t{sizeof(KvRow)};
    sum.read_bytes += counts + token_scores * int64_t{sizeof(KvTokenScore)} + 2 * freed * kId +
                      result.demoted * kv_token_bytes(pages.layouts[sequence.tiers.high]);
    sum.written_bytes += counts + 3 * freed * kId +
                         result.demoted * (kv_token_bytes(pages.layouts[sequence.tiers.low]) +
                                           int64_t{sizeof(KvTokenScore)});
  }
  return sum;
}

// A comparison for each logit. If it is weighed, also a difference, a quotient, an exponential and
// a sum: once for the choice and once for its probability.
OpCost op_cost(const SampleArgs& args) {
  const auto rows = std::ssize(args.rows);
  OpCost sum{.read_bytes = rows * args.logits.cols * kFloat + rows * int64_t{sizeof(SampleRow)} +
                           std::ssize(args.changes) * int64_t{sizeof(LogitChange)} +
                           std::ssize(args.masks) * int64_t{sizeof(uint32_t)},
             .written_bytes = rows * int64_t{sizeof(SampledToken)}};
  for (const SampleRow& row : args.rows) {
    const bool draws = row.forced < 0 && row.temperature > 0;
    sum.flops += args.logits.cols * (1 + (draws ? 4 : 0) + (row.wants_logprob ? 4 : 0));
  }
  return sum;
}

// The ranks stay in a cache between the two products.
OpCost op_cost(const LowRankArgs& args) {
  OpCost cost;
  for (const LowRankRows& rows : args.rows) {
    const LowRankMatrix& down = rows.product->down;
    const auto add = [&](const LowRankMatrix& matrix) {
      cost.read_bytes += weight_bytes(matrix.format, matrix.rows, matrix.cols);
      cost.flops += 2 * rows.count * matrix.rows * matrix.cols;
    };
    add(down);
    cost.read_bytes += rows.count * down.cols * kFloat;
    for (const LowRankProduct::Part& part : rows.product->all()) {
      add(part.up);
      cost.read_bytes += rows.count * part.up.rows * kFloat;
      cost.written_bytes += rows.count * part.up.rows * kFloat;
    }
  }
  return cost;
}

// ---- ops on prefix blocks

// Page ids are copied, and owner counts incremented.
OpCost op_cost(const KvShareArgs& args) {
  int64_t shared = 0;
  for (const KvShare& share : args.shares) {
    shared +=
        heads_of(args.pool.pages) * args.pool.prefix_block_pages_of(share.tier, share.short_tokens);
  }
  return {.read_bytes = 2 * shared * kId, .written_bytes = 2 * shared * kId, .flops = 0};
}

// Like kv_share, and token scores are written.
OpCost op_cost(const KvAttachArgs& args) {
  const KvPagesView& pages = args.pool.pages;
  int64_t shared = 0;
  int64_t token_scores = 0;
  for (const KvAttachment& attachment : args.attachments) {
    for (const PrefixBlock& prefix_block : attachment.prefix_blocks) {
      shared += heads_of(pages) *
                args.pool.prefix_block_pages_of(prefix_block.tier, prefix_block.short_tokens);
      token_scores +=
          pages.scores_all_tokens() ? heads_of(pages) * prefix_block.tokens_in(args.pool) : 0;
    }
  }
  return {.read_bytes = 2 * shared * kId,
          .written_bytes = 2 * shared * kId + token_scores * int64_t{sizeof(KvTokenScore)},
          .flops = 0};
}

// Pages are copied; each copy is taken from the free list, and the other page loses an owner.
OpCost op_cost(const KvOwnArgs& args) {
  const int64_t copied = heads_of(args.pool.pages) * args.row_pages();
  const int64_t bytes = copied * args.pool.pages.page_bytes;
  return {.read_bytes = bytes + 3 * copied * kId,
          .written_bytes = bytes + 3 * copied * kId,
          .flops = 0};
}

// Like released pages of kv_resize.
OpCost op_cost(const KvEvictArgs& args) {
  int64_t returned = 0;
  for (const int32_t handle : args.handles) {
    const int32_t* first = args.pool.prefix_block_table(handle, 0);
    const int64_t entries = heads_of(args.pool.pages) * args.pool.prefix_block_pages;
    returned += entries - std::count(first, first + entries, kNoPage);
  }
  return {.read_bytes = 2 * returned * kId, .written_bytes = 3 * returned * kId, .flops = 0};
}

// Reads every token in its old format and writes it in the new one; returns the pages that become
// empty.
OpCost op_cost(const KvDemoteArgs& args) {
  const KvPool& pool = args.pool;
  OpCost of_head;
  for (const PrefixBlock& prefix_block : args.prefix_blocks) {
    const int64_t returned =
        pool.prefix_block_pages_of(prefix_block.tier) - pool.prefix_block_pages_of(args.tier);
    of_head.read_bytes +=
        pool.prefix_block_tokens * kv_token_bytes(pool.pages.layouts[prefix_block.tier]) +
        2 * returned * kId;
    of_head.written_bytes +=
        pool.prefix_block_tokens * kv_token_bytes(pool.pages.layouts[args.tier]) +
        3 * returned * kId;
  }
  return {.read_bytes = heads_of(pool.pages) * of_head.read_bytes,
          .written_bytes = heads_of(pool.pages) * of_head.written_bytes,
          .flops = 0};
}

}  // namespace tessera
