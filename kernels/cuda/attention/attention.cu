#include <algorithm>
#include <iterator>

#include "kernels/check.h"
#include "kernels/cuda/attention/task.h"
#include "kernels/cuda/attention/warp_attention.h"
#include "kernels/cuda/ops.h"

namespace tessera::cuda {
namespace {

using namespace simt;

constexpr int32_t kThreads = kWarpsOfBlock * kWarp;

// `row`: of the batch.
TESSERA_DEVICE float* out_of(const AttentionArgs& args, int32_t row, int32_t head) {
  return args.out.data + row * args.out.stride + int64_t{head} * args.pages.head_dim;
}

TESSERA_DEVICE void put_log_sum(const AttentionArgs& args, int32_t row, int32_t head,
                                float log_sum) {
  if (args.log_sums.data != nullptr) {
    args.log_sums.data[row * args.log_sums.stride + head] = log_sum;
  }
}

// Partial softmax of a listed query's head over split 0; those of later splits follow.
TESSERA_DEVICE float* partials_of(const AttentionArgs& args, const Work& work, int32_t query,
                                  int32_t head) {
  const int64_t pair = int64_t{query} * args.query_heads + head;
  return work.partials + pair * work.max_splits * partial_floats(args.pages.head_dim);
}

template <int kDim, int kProducts, class Rows>
TESSERA_DEVICE void put_partials(const WarpAttention<kDim, kProducts, Rows>& warp,
                                 const AttentionArgs& args, const Work& work,
                                 const WarpTask& task) {
  for (int32_t product = 0; product < kProducts; ++product) {
    const int32_t pair = warp.pair(product);
    if (pair >= task.pairs) {
      continue;
    }
    float* to = partials_of(args, work, task.of[pair].query, task.of[pair].head) +
                task.split * partial_floats(args.pages.head_dim);
    warp.each_value(product, [&](int32_t channel, float value) { to[channel] = value; });
    if (lane() < 4) {
      to[args.pages.head_dim] = warp.sums(product).maximum;
      to[args.pages.head_dim + 1] = warp.sums(product).sum;
    }
  }
}

// Blocks a multiprocessor. Two products take 168 registers a lane: more loads in flight are
// preferred to longer instruction schedules.
template <int kProducts, class Rows>
inline constexpr int kBlocks = kProducts == 1 ? Rows::kBlocks : 3;

// Shared memory of a multiprocessor of Hopper, and what each block takes of it besides its own.
inline constexpr int32_t kMultiprocessorBytes = 228 * 1024;
inline constexpr int32_t kReservedBytes = 1024;

// Merges a split into args.out and memory.merged, which hold the splits before it.
// Requires: all lanes call it.
template <int kDim, int kProducts, class Rows>
TESSERA_DEVICE void merge_span(const WarpAttention<kDim, kProducts, Rows>& warp,
                               const AttentionArgs& args, WarpMemory<kDim, kProducts>& memory) {
  const WarpTask& task = memory.task;
  PartialSums before[kProducts];
  TESSERA_UNROLL
  for (int32_t product = 0; product < kProducts; ++product) {
    before[product] = memory.merged[warp.pair(product)];
  }
  sync_warp();
  TESSERA_UNROLL
  for (int32_t product = 0; product < kProducts; ++product) {
    const PartialSums sums = warp.sums(product);
    const int32_t pair = warp.pair(product);
    if (pair >= task.pairs || sums.sum == 0) {
      continue;
    }
    float* out = out_of(args, task.of[pair].row, task.of[pair].head);
    const bool begun = before[product].sum > 0;
    Merge merge{before[product].maximum, before[product].sum};
    merge.add(sums);
    warp.each_value(product, [&](int32_t channel, float value) {
      out[channel] = merge.value(begun ? out[channel] : 0.0f, value);
    });
    if (lane() < 4) {
      memory.merged[warp.pair(product)] = {merge.maximum, merge.sum};
    }
  }
  sync_warp();
}

template <int kDim, int kProducts, class Rows>
TESSERA_DEVICE void finish(const WarpAttention<kDim, kProducts, Rows>& warp,
                           const AttentionArgs& args, const WarpMemory<kDim, kProducts>& memory) {
  const WarpTask& task = memory.task;
  TESSERA_UNROLL
  for (int32_t product = 0; product < kProducts; ++product) {
    const int32_t pair = warp.pair(product);
    if (pair >= task.pairs) {
      continue;
    }
    const TaskPair& of = task.of[pair];
    float* out = out_of(args, of.row, of.head);
    const PartialSums sums = memory.merged[pair];
    warp.each_value(product, [&](int32_t channel, float) { out[channel] /= sums.sum; });
    if (lane() < 4) {
      put_log_sum(args, of.row, of.head, Merge{sums.maximum, sums.sum}.log_sum());
    }
  }
}

template <int kDim, int kProducts, class Rows>
TESSERA_KERNEL(kThreads, (kBlocks<kProducts, Rows>))
attention_kernel(AttentionArgs args, const SequenceSpan* sequences, Work work) {
  using Warp = WarpAttention<kDim, kProducts, Rows>;
  typename Warp::Memory& memory = warp_memory<typename Warp::Memory>();
  const WarpTask& task = memory.task;
  int32_t index = first_index(work);
  while (work.listed()
             ? find_listed<Warp::kPairs>(args, sequences, work, index, memory.task)
             : find_whole<Warp::kPairs, Rows>(args, sequences, work, index, memory.task)) {
    Warp attention(args, memory);
    if (!work.listed() && lane() < Warp::kPairs) {
      memory.merged[lane()] = {Merge{}.maximum, Merge{}.sum};
    }
    // All kinds of work share one call of run(), most of the kernel's code: with two calls,
    // registers spilled.
    do {
      attention.run();
      if (work.listed()) {
        put_partials(attention, args, work, task);
        break;
      }
      merge_span(attention, args, memory);
      if (lane() == 0) {
        memory.task.begin_split(task.end);
      }
      sync_warp();
    } while (task.first < task.row.tiles());
    if (!work.listed()) {
      return finish(attention, args, memory);
    }
    index = task.index + work.warps;
  }
}

// Merges the splits of a row's pairs, one warp for each pair.
TESSERA_KERNEL(kThreads)
merge_kernel(AttentionArgs args, const SequenceSpan* sequences, Work work) {
  const int32_t query = block_x() / args.pages.kv_heads;
  const int32_t kv_head = block_x() % args.pages.kv_heads;
  const int32_t token = query % work.tokens;
  const SequenceSpan span = sequences[query / work.tokens];
  const int32_t heads = args.query_heads / args.pages.kv_heads;
  const int32_t pair = block_y() * kWarpsOfBlock + warp();
  if (!work.serves(span) || token >= span.count || pair >= heads) {
    return;
  }
  // The address of the row's own group is not used.
  const RowTokens row = StepRows{args.pages, args.layer, args.dense.data()}.tokens(
      span, kv_head, 0, (span.context + token) / kKvGroup);
  const int32_t splits = span_count(row.tiles());
  const int32_t head_dim = args.pages.head_dim;
  const int32_t head = kv_head * heads + pair;
  const float* partials = partials_of(args, work, query, head);
  float* out = out_of(args, span.first_row + token, head);
  for (int32_t first = 0; first < head_dim; first += kWarp) {
    const int32_t channel = first + lane();
    Merge merge;
    float value = 0;
    for (int32_t i = 0; i < splits; ++i) {
      const float* partial = partials + i * partial_floats(head_dim);
      const PartialSums sums{partial[head_dim], partial[head_dim + 1]};
      if (sums.sum == 0) {
        continue;
      }
      merge.add(sums);
      value = merge.value(value, channel < head_dim ? partial[channel] : 0.0f);
    }
    if (channel < head_dim) {
      out[channel] = value / merge.sum;
    }
    if (first == 0 && lane() == 0) {
      put_log_sum(args, span.first_row + token, head, merge.log_sum());
    }
  }
}

bool any_sparse(const AttentionArgs& args) {
  return std::any_of(args.sequences.begin(), args.sequences.end(), [&](const SequenceSpan& span) {
    return args.pages.layouts[span.tiers.high].format.is_sparse() ||
           args.pages.layouts[span.tiers.low].format.is_sparse();
  });
}

// Returns: warps of a block, for a launch of that number.
int32_t warps_of_block(int64_t warps, Stream stream) {
  return warps <= int64_t{kFewWarps} * limits(stream).multiprocessors ? 1 : kWarpsOfBlock;
}

// Returns: shape of a launch over rows, in blocks of up to `pairs` pairs for each warp.
LaunchShape shape_of_rows(const AttentionArgs& args, const Work& work, int32_t pairs,
                          Stream stream) {
  const int32_t heads = args.query_heads / args.pages.kv_heads;
  int32_t max_blocks = 0;
  for (const SequenceSpan& span : args.sequences) {
    if (work.serves(span)) {
      const int32_t blocks = PairBlocks{span.context, span.count, heads, pairs}.blocks();
      max_blocks = blocks > max_blocks ? blocks : max_blocks;
    }
  }
  const int32_t rows = static_cast<int32_t>(args.sequences.size()) * args.pages.kv_heads;
  const int32_t warps = warps_of_block(int64_t{rows} * max_blocks, stream);
  return {.grid_x = rows,
          .grid_y = static_cast<int32_t>(div_ceil(max_blocks, warps)),
          .threads = warps * kWarp};
}

// Returns: shape of a launch over a list of at most `items`. `blocks`: of four warps, that a
// multiprocessor holds. Warps take items until there are none, so no more are started than run at
// once.
LaunchShape shape_of_list(int64_t items, int32_t blocks, Stream stream) {
  const int32_t warps = warps_of_block(items, stream);
  const int64_t running =
      int64_t{limits(stream).multiprocessors} * blocks * (kWarpsOfBlock / warps);
  return {.grid_x = static_cast<int32_t>(std::min(div_ceil(items, warps), running)),
          .threads = warps * kWarp};
}

template <int kDim, int kProducts, class Rows>
void start(const AttentionArgs& args, const SequenceSpan* sequences, Work work, Stream stream) {
  using Warp = WarpAttention<kDim, kProducts, Rows>;
  static_assert(
      kBlocks<kProducts, Rows> * (block_memory_bytes<typename Warp::Memory, typename Warp::Parts>(
                                      kWarpsOfBlock, true) +
                                  kReservedBytes) <=
          kMultiprocessorBytes,
      "blocks that have registers also have shared memory");
  // An item that is shared has at least two of the rows' splits.
  const int64_t items = work.max_items / (work.kind == WorkKind::shared ? 2 : 1);
  LaunchShape shape = work.listed() ? shape_of_list(items, kBlocks<kProducts, Rows>, stream)
                                    : shape_of_rows(args, work, Warp::kPairs, stream);
  shape.shared_bytes = block_memory_bytes<typename Warp::Memory, typename Warp::Parts>(
      shape.threads / kWarp, any_sparse(args));
  work.warps = shape.grid_x * (shape.threads / kWarp);
  launch(stream, shape, attention_kernel<kDim, kProducts, Rows>, args, sequences, work);
}

// Returns: whether Rows serves every row of the arena. The sequences of a step do not matter: a
// recorded step is started later with others.
template <class Rows>
bool serves(const AttentionArgs& args) {
  return args.sliding_window == 0 && args.pages.residual_layout.format == kKvF16 &&
         std::all_of(std::begin(args.pages.layouts), std::end(args.pages.layouts),
                     [](const KvPageLayout& layout) {
                       return layout.capacity == 0 || layout.format == Rows::kFormat;
                     });
}

// Decode: the kernel of the arena's one format, if it is listed here.
template <int kDim, int kProducts, class... Listed>
void start_decode(const AttentionArgs& args, const SequenceSpan* sequences, const Work& work,
                  Stream stream) {
  const bool started = args.pages.head_dim == kDim &&
                       ((serves<Listed>(args) &&
                         (start<kDim, kProducts, Listed>(args, sequences, work, stream), true)) ||
                        ...);
  if (!started) {
    start<kDim, kProducts, AnyRows>(args, sequences, work, stream);
  }
}

// One product for each four pairs: two products for prompts, for a gqa_ratio of more than 4, and
// for several query tokens.
template <int kDim>
void start(const AttentionArgs& args, const SequenceSpan* sequences, const Work& work,
           Stream stream) {
  const bool few_pairs = args.query_heads / args.pages.kv_heads <= kPairsOfProduct;
  if (few_pairs && (work.kind == WorkKind::own || work.kind == WorkKind::whole)) {
    start_decode<kDim, 1, F16Rows, K8V4Rows, K4V2Rows, S70Rows>(args, sequences, work, stream);
  } else if (kDim == 128 && work.kind == WorkKind::shared) {
    start_decode<128, 2, F16Rows, K8V4Rows, K4V2Rows, S70Rows>(args, sequences, work, stream);
  } else {
    start<kDim, 2, AnyRows>(args, sequences, work, stream);
  }
}

void start(const AttentionArgs& args, const SequenceSpan* sequences, const Work& work,
           Stream stream) {
  if (args.pages.head_dim <= 64) {
    start<64>(args, sequences, work, stream);
  } else {
    start<128>(args, sequences, work, stream);
  }
}

void check_args(const AttentionArgs& args) {
  const KvPagesView& pages = args.pages;
  TESSERA_CHECK(pages.head_dim > 0 && pages.head_dim % 16 == 0 && pages.head_dim <= 128,
                "the CUDA backend serves head dimensions of a multiple of 16 up to 128");
  TESSERA_CHECK(args.query_heads > 0 && args.query_heads % pages.kv_heads == 0,
                "attention: query heads are a multiple of KV heads");
  TESSERA_CHECK(args.queries.cols == int64_t{args.query_heads} * pages.head_dim &&
                    args.out.cols == args.queries.cols && args.out.rows == args.queries.rows,
                "attention: shapes of queries and out");
  for (const SequenceSpan& span : args.sequences) {
    for (const uint8_t tier : {span.tiers.high, span.tiers.low}) {
      TESSERA_CHECK(is_supported(pages.layouts[tier].format),
                    "attention: a page format without a CUDA kernel");
    }
    TESSERA_CHECK(span.count >= 0 && span.first_row >= 0 &&
                      span.first_row + span.count <= args.queries.rows && span.context >= 0,
                  "attention: a sequence's rows");
    TESSERA_CHECK(!span.selects(), "attention: a step for a backend that selects tiles");
    TESSERA_CHECK(args.sliding_window == 0 || span.tiers.high == span.tiers.low,
                  "attention: a sliding window needs rows of one tier");
  }
}

// Computes attention by the lists that plan_attention made, then merges the splits.
void start_listed(const AttentionArgs& args, const SequenceSpan* sequences, const ListShape& shape,
                  Work work, Stream stream) {
  const KvPagesView& pages = args.pages;
  const int32_t heads = args.query_heads / pages.kv_heads;
  TESSERA_CHECK(shape.bytes(pages.layers) <= std::ssize(args.plan),
                "attention: no plan, or a plan of another step");
  TESSERA_CHECK(shape.rows() * heads * shape.splits * partial_floats(pages.head_dim) *
                        int64_t{sizeof(float)} <=
                    std::ssize(args.scratch),
                "attention: scratch is too small");
  const SplitLists lists = shape.in(args.plan, pages.layers);
  const SplitCounts& counts = lists.counts[args.layer];  // on the device
  work.heads = heads;
  work.max_items = lists.layer_items;
  work.max_splits = shape.splits;
  work.tokens = shape.tokens;
  work.partials = reinterpret_cast<float*>(args.scratch.data());
  work.kind = WorkKind::own;
  work.count = &counts.own;
  work.items = lists.own(args.layer, 0);
  start(args, sequences, work, stream);
  if (args.share_reads && shape.sequences * shape.tokens > 1 && queries_of_item(heads) > 1) {
    work.kind = WorkKind::shared;
    work.count = &counts.shared;
    work.items = lists.shared(args.layer, 0);
    work.step = -1;
    start(args, sequences, work, stream);
  }
  launch(stream,
         {.grid_x = static_cast<int32_t>(shape.rows()),
          .grid_y = static_cast<int32_t>(div_ceil(heads, kWarpsOfBlock)),
          .threads = kThreads},
         merge_kernel, args, sequences, work);
}

}  // namespace

int64_t attention_scratch_bytes(const StepLimits& limits, int32_t query_heads, int32_t head_dim) {
  // Only the splits of lists have partial sums.
  const int64_t sequences = std::min(limits.sequences, kMaxListedRows);
  return sequences * query_heads * max_splits(limits.context) * partial_floats(head_dim) *
         int64_t{sizeof(float)};
}

void attention(const AttentionArgs& args, Stream stream) {
  check_args(args);
  const SequenceSpan* sequences = mirror(args.sequences, stream);
  const ListShape shape =
      ListShape::of(args.sequences, args.pages, args.query_heads, std::ssize(args.plan));
  const Work whole{.kind = WorkKind::whole,
                   .scorings = args.scorings.empty() ? nullptr : mirror(args.scorings, stream)};
  const Work prompts{.kind = WorkKind::prompts, .tokens = shape.tokens};
  const auto any = [&](const Work& work) {
    return std::ranges::any_of(args.sequences,
                               [&](const SequenceSpan& span) { return work.serves(span); });
  };
  if (shape.splits > 0) {
    start_listed(args, sequences, shape, whole, stream);
  } else if (any(whole)) {
    start(args, sequences, whole, stream);
  }
  if (any(prompts)) {
    start(args, sequences, prompts, stream);
  }
}

}  // namespace tessera::cuda
