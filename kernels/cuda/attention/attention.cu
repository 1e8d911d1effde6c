#include <algorithm>
#include <iterator>

#include "kernels/check.h"
#include "kernels/cuda/attention/warp_attention.h"
#include "kernels/cuda/ops.h"

namespace tessera::cuda {
namespace {

using namespace simt;

constexpr int32_t kThreads = kWarpsOfBlock * kWarp;

// One launch: either all sequences with one new token (decode), or all others (prompts).
struct Work {
  bool decode = false;
  bool split = false;         // one split a warp, into `partials`; else all splits, into args.out
  int32_t max_splits = 1;     // splits of a row, if `split`
  float* partials = nullptr;  // [rows, query heads of a KV head, max_splits, partial_floats]
  const KvScoring* scorings = nullptr;  // null: no sequence is scored
};

// (sequence, KV head) of a block, encoded in block_x.
struct Place {
  int32_t sequence;
  int32_t kv_head;
};
TESSERA_DEVICE Place place_of_block(const AttentionArgs& args) {
  return {block_x() / args.pages.kv_heads, block_x() % args.pages.kv_heads};
}

// An item is one split of a block of pairs if work.split, else a block of pairs.
TESSERA_DEVICE int32_t item_of_warp() {
  return block_y() * (threads() / kWarp) + warp();
}

TESSERA_DEVICE float* out_of(const AttentionArgs& args, const SequenceSpan& span, int32_t row,
                             int32_t head) {
  return args.out.data + (span.first_row + row) * args.out.stride +
         int64_t{head} * args.pages.head_dim;
}

TESSERA_DEVICE void put_log_sum(const AttentionArgs& args, const SequenceSpan& span, int32_t row,
                                int32_t head, float log_sum) {
  if (args.log_sums.data != nullptr) {
    args.log_sums.data[(span.first_row + row) * args.log_sums.stride + head] = log_sum;
  }
}

// Returns: row of args.weights that receives the block's scores, or null. `tiles`: tiles of its
// row.
TESSERA_DEVICE float* scores_left(const AttentionArgs& args, const Work& work,
                                  const SequenceSpan& span, int32_t sequence, int32_t tiles) {
  if (work.scorings == nullptr || !has_attention_weight_rows(args, span, sequence) ||
      !work.scorings[sequence].includes(span.context)) {
    return nullptr;
  }
  simt::check(tiles * attention_weight_tile_floats(args.query_heads / args.pages.kv_heads) <=
              args.weights.cols);
  return args.weights.data + block_x() * args.weights.stride;
}

template <int kDim, int kProducts, class Rows>
TESSERA_DEVICE void put_partials(const WarpAttention<kDim, kProducts, Rows>& warp,
                                 const AttentionArgs& args, const Work& work,
                                 const WarpTask& task) {
  for (int32_t product = 0; product < kProducts; ++product) {
    if (warp.pair(product) >= task.block.pairs) {
      continue;
    }
    const int64_t pair =
        int64_t{block_x()} * task.heads + task.block.first_pair + warp.pair(product);
    float* to =
        work.partials + (pair * work.max_splits + task.split) * partial_floats(args.pages.head_dim);
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

// Returns: split of its row that the warp computes; 0 without work.split.
TESSERA_DEVICE int32_t split_of_warp(const Work& work) {
  return work.split ? item_of_warp() % work.max_splits : 0;
}

// Writes the warp's task to `task`. Returns: false if the warp has nothing to do. Rows of one
// format are decoded, with all query heads of a KV head in one block of pairs.
template <int kPairs, class Rows>
TESSERA_DEVICE bool find_task(const AttentionArgs& args, const SequenceSpan* sequences,
                              const Work& work, WarpTask& task) {
  const Place place = place_of_block(args);
  const SequenceSpan span = sequences[place.sequence];
  const int32_t heads = args.query_heads / args.pages.kv_heads;
  const bool decode = Rows::kOneFormat || work.decode;
  const PairBlocks blocks{span.context, span.count, heads, kPairs};
  const int32_t block_index = work.split ? item_of_warp() / work.max_splits : item_of_warp();
  if ((span.count == 1) != decode || block_index >= (Rows::kOneFormat ? 1 : blocks.blocks())) {
    return false;
  }
  const PairBlock block =
      Rows::kOneFormat ? PairBlock{span.context / kKvGroup, 0, heads} : blocks.block(block_index);
  const int32_t first_dense = decode ? 0 : dense_groups_before(sequences, place.sequence);
  const RowTokens row = StepRows{args.pages, args.layer, args.dense.data()}.tokens(
      span, place.kv_head, first_dense, block.group);
  const int32_t splits = span_count(row.tiles());
  simt::check(!work.split || splits <= work.max_splits);
  if (split_of_warp(work) >= splits) {
    return false;
  }
  if (lane() == 0) {
    task = {.span = span,
            .row = row,
            .block = block,
            .first_head = place.kv_head * heads,
            .heads = heads,
            .split = split_of_warp(work),
            .scores_left = nullptr};
    task.begin_split(task.split * split_tiles(row.tiles()));
    task.scores_left = scores_left(args, work, span, place.sequence, task.row.tiles());
  }
  sync_warp();
  return true;
}

// Batch row (relative to the span's first row) and query head of a pair of the warp's block.
struct PairPlace {
  int32_t row;
  int32_t head;
};
TESSERA_DEVICE PairPlace place_of_pair(const WarpTask& task, int32_t pair) {
  const int32_t at = task.block.first_pair + pair;
  return {at / task.heads, task.first_head + at % task.heads};
}

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
    if (warp.pair(product) >= task.block.pairs || sums.sum == 0) {
      continue;
    }
    const PairPlace place = place_of_pair(task, warp.pair(product));
    float* out = out_of(args, task.span, place.row, place.head);
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
    if (warp.pair(product) >= task.block.pairs) {
      continue;
    }
    const PairPlace place = place_of_pair(task, warp.pair(product));
    float* out = out_of(args, task.span, place.row, place.head);
    const PartialSums sums = memory.merged[warp.pair(product)];
    warp.each_value(product, [&](int32_t channel, float) { out[channel] /= sums.sum; });
    if (lane() < 4) {
      put_log_sum(args, task.span, place.row, place.head, Merge{sums.maximum, sums.sum}.log_sum());
    }
  }
}

template <int kDim, int kProducts, class Rows>
TESSERA_KERNEL(kThreads, (kBlocks<kProducts, Rows>))
attention_kernel(AttentionArgs args, const SequenceSpan* sequences, Work work) {
  using Warp = WarpAttention<kDim, kProducts, Rows>;
  typename Warp::Memory& memory = warp_memory<typename Warp::Memory>();
  const WarpTask& task = memory.task;
  if (!find_task<Warp::kPairs, Rows>(args, sequences, work, memory.task)) {
    return;
  }
  Warp attention(args, memory);
  if (lane() < Warp::kPairs) {
    memory.merged[lane()] = {Merge{}.maximum, Merge{}.sum};
  }
  // Both modes share one call of run(), most of the kernel's code: with two calls, registers
  // spilled.
  do {
    attention.run();
    if (work.split) {
      return put_partials(attention, args, work, task);
    }
    merge_span(attention, args, memory);
    if (lane() == 0) {
      memory.task.begin_split(task.end);
    }
    sync_warp();
  } while (task.first < task.row.tiles());
  finish(attention, args, memory);
}

// Merges the splits of a row's pairs, one warp for each pair.
TESSERA_KERNEL(kThreads)
merge_kernel(AttentionArgs args, const SequenceSpan* sequences, Work work) {
  const Place place = place_of_block(args);
  const SequenceSpan span = sequences[place.sequence];
  const int32_t heads = args.query_heads / args.pages.kv_heads;
  const int32_t pair = block_y() * kWarpsOfBlock + warp();
  if (span.count != 1 || pair >= heads) {
    return;
  }
  const RowTokens row = StepRows{args.pages, args.layer, args.dense.data()}.tokens(
      span, place.kv_head, 0, span.last_group());
  const int32_t splits = span_count(row.tiles());
  const int32_t head_dim = args.pages.head_dim;
  const int32_t head = place.kv_head * heads + pair;
  const float* partials = work.partials + (int64_t{block_x()} * heads + pair) * work.max_splits *
                                              partial_floats(head_dim);
  float* out = out_of(args, span, 0, head);
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
      put_log_sum(args, span, 0, head, merge.log_sum());
    }
  }
}

bool any_sparse(const AttentionArgs& args) {
  return std::any_of(args.sequences.begin(), args.sequences.end(), [&](const SequenceSpan& span) {
    return args.pages.layouts[span.tiers.high].format.is_sparse() ||
           args.pages.layouts[span.tiers.low].format.is_sparse();
  });
}

template <int kDim, int kProducts, class Rows>
void start(const AttentionArgs& args, const SequenceSpan* sequences, const Work& work,
           Stream stream) {
  using Warp = WarpAttention<kDim, kProducts, Rows>;
  static_assert(
      kBlocks<kProducts, Rows> * (block_memory_bytes<typename Warp::Memory, typename Warp::Parts>(
                                      kWarpsOfBlock, true) +
                                  kReservedBytes) <=
          kMultiprocessorBytes,
      "blocks that have registers also have shared memory");
  const int32_t heads = args.query_heads / args.pages.kv_heads;
  int32_t max_blocks = 0;
  for (const SequenceSpan& span : args.sequences) {
    if ((span.count == 1) == work.decode) {
      const int32_t blocks =
          PairBlocks{span.context, span.count, heads, kPairsOfProduct * kProducts}.blocks();
      max_blocks = blocks > max_blocks ? blocks : max_blocks;
    }
  }
  const int64_t items = int64_t{max_blocks} * (work.split ? work.max_splits : 1);
  const int32_t rows = static_cast<int32_t>(args.sequences.size()) * args.pages.kv_heads;
  const int32_t warps = items * rows <= kFewWarps ? 1 : kWarpsOfBlock;
  launch(stream,
         {.grid_x = rows,
          .grid_y = static_cast<int32_t>(div_ceil(items, warps)),
          .threads = warps * kWarp,
          .shared_bytes = block_memory_bytes<typename Warp::Memory, typename Warp::Parts>(
              warps, any_sparse(args))},
         attention_kernel<kDim, kProducts, Rows>, args, sequences, work);
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

// Decode of up to four pairs a KV head: the kernel of the arena's one format, if it is listed here.
template <int kDim, class... Listed>
void start_decode(const AttentionArgs& args, const SequenceSpan* sequences, const Work& work,
                  Stream stream) {
  const bool started =
      args.pages.head_dim == kDim &&
      ((serves<Listed>(args) && (start<kDim, 1, Listed>(args, sequences, work, stream), true)) ||
       ...);
  if (!started) {
    start<kDim, 1, AnyRows>(args, sequences, work, stream);
  }
}

// One product for each four pairs: two products for prompts and for a gqa_ratio of more than 4.
template <int kDim>
void start(const AttentionArgs& args, const SequenceSpan* sequences, const Work& work,
           Stream stream) {
  if (work.decode && args.query_heads / args.pages.kv_heads <= kPairsOfProduct) {
    start_decode<kDim, F16Rows, K8V4Rows, K4V2Rows, S70Rows>(args, sequences, work, stream);
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

// Returns: most splits of a row of `tokens` tokens or fewer. Both tiers may end in a partly filled
// tile.
int32_t max_splits(int32_t tokens) {
  const int64_t splits = div_ceil(tokens / kKvGroup + 3, kMinSplitTiles);
  return splits > kMaxSplits ? kMaxSplits : static_cast<int32_t>(splits);
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

}  // namespace

int64_t attention_scratch_bytes(const StepLimits& limits, int32_t query_heads, int32_t head_dim) {
  // Only launches of fewer than kWholeRows rows are split.
  const int64_t split = int64_t{limits.sequences < kWholeRows ? limits.sequences : kWholeRows};
  return split * query_heads * max_splits(limits.context) * partial_floats(head_dim) *
         int64_t{sizeof(float)};
}

void attention(const AttentionArgs& args, Stream stream) {
  check_args(args);
  Work decode{.decode = true};
  Work prompt;
  bool any_decode = false;
  bool any_prompt = false;
  int32_t longest = 0;
  for (const SequenceSpan& span : args.sequences) {
    any_decode = any_decode || span.count == 1;
    any_prompt = any_prompt || span.count > 1;
    longest = span.context + span.count > longest ? span.context + span.count : longest;
  }
  const SequenceSpan* sequences = mirror(args.sequences, stream);
  const int64_t rows = std::ssize(args.sequences) * args.pages.kv_heads;
  if (any_decode) {
    decode.max_splits = max_splits(longest);
    decode.split = rows < kWholeRows && decode.max_splits > 1;
    decode.partials = reinterpret_cast<float*>(args.scratch.data());
    decode.scorings = args.scorings.empty() ? nullptr : mirror(args.scorings, stream);
    TESSERA_CHECK(!decode.split || rows * (args.query_heads / args.pages.kv_heads) *
                                           decode.max_splits * partial_floats(args.pages.head_dim) *
                                           int64_t{sizeof(float)} <=
                                       std::ssize(args.scratch),
                  "attention: scratch is too small");
    start(args, sequences, decode, stream);
    if (decode.split) {
      launch(stream,
             {.grid_x = static_cast<int32_t>(rows),
              .grid_y = static_cast<int32_t>(
                  div_ceil(args.query_heads / args.pages.kv_heads, kWarpsOfBlock)),
              .threads = kThreads},
             merge_kernel, args, sequences, decode);
    }
  }
  if (any_prompt) {
    start(args, sequences, prompt, stream);
  }
}

}  // namespace tessera::cuda
