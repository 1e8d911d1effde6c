#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "kernels/cuda/attention/merge.h"
#include "kernels/cuda/attention/task.h"
#include "kernels/cuda/attention/warp_attention.h"
#include "kernels/cuda/ops/cuda_ops.h"

namespace tessera::cuda {
namespace {

using namespace simt;

constexpr int32_t kThreads = kWarpsOfBlock * kWarp;

// Blocks a multiprocessor. Two products take 168 registers a lane: more loads in flight are
// preferred to longer instruction schedules.
template <int kProducts, class Rows>
inline constexpr int kBlocks = kProducts == 1 ? Rows::kBlocks : 3;

// Shared memory of a multiprocessor of Hopper, and the part that each block takes besides its own.
inline constexpr int32_t kMultiprocessorBytes = 228 * 1024;
inline constexpr int32_t kReservedBytes = 1024;

// Returns: the lane's pair in a product. Numbers that follow from it are not kept during the tiles.
template <class Warp>
TESSERA_DEVICE int32_t own_pair(const Warp& warp, int32_t product) {
  return simt::not_kept(warp.pair(product));
}

// Merges the next slice or split of each pair of a warp. `before`: partial softmaxes before it.
// to(pair): their values. next(product): the sums to merge. values(pair, channel, of_slice): its
// values. Each lane reads and writes its own channels.
// Requires: all lanes call it.
template <class Warp, class To, class Next, class Values>
TESSERA_DEVICE void merge_next(const Warp& warp, const WarpTask& task, PartialSums* before, To&& to,
                               Next&& next, Values&& values) {
  constexpr int32_t kProducts = Warp::kPairs / kPairsOfProduct;
  constexpr int32_t kStep = Warp::Channels::kStep;
  PartialSums sums[kProducts];
  PartialSums nexts[kProducts];
  TESSERA_UNROLL
  for (int32_t product = 0; product < kProducts; ++product) {
    sums[product] = before[own_pair(warp, product)];
    nexts[product] = next(product);
  }
  sync_warp();
  TESSERA_UNROLL
  for (int32_t product = 0; product < kProducts; ++product) {
    const int32_t pair = own_pair(warp, product);
    if (pair >= task.pairs || nexts[product].sum == 0) {
      continue;
    }
    const bool begun = sums[product].sum > 0;
    const MergeFactors factors = merge(sums[product], nexts[product]);
    float* merged = to(pair);
    // Two loops, so that no load waits for a test.
    if (begun) {
      warp.each_four(product, [&](int32_t channel, const FourChannels& of_slice) {
        store_channels<kStep>(merged + channel, factors.sum(load_channels<kStep>(merged + channel),
                                                            values(pair, channel, of_slice)));
      });
    } else {
      warp.each_four(product, [&](int32_t channel, const FourChannels& of_slice) {
        store_channels<kStep>(merged + channel, factors.sum({}, values(pair, channel, of_slice)));
      });
    }
    if (lane() < 4) {
      before[pair] = sums[product];
    }
  }
  sync_warp();
}

// Merges a slice into the partial softmaxes of its split, which are in scratch and memory.of_split.
template <int kDim, int kProducts, class Rows>
TESSERA_DEVICE void merge_slice(const WarpAttention<kDim, kProducts, Rows>& warp,
                                const AttentionArgs& args, const Work& work,
                                WarpMemory<kDim, kProducts>& memory) {
  merge_next(
      warp, memory.task, memory.of_split,
      [&](int32_t pair) { return partial_at(args, work, memory.task.of[pair].partial); },
      [&](int32_t product) { return warp.sums(product); },
      [](int32_t, int32_t, const FourChannels& of_slice) { return of_slice; });
}

// Merges a split into args.out and memory.of_row, which hold the splits before it.
template <int kDim, int kProducts, class Rows>
TESSERA_DEVICE void merge_split(const WarpAttention<kDim, kProducts, Rows>& warp,
                                const AttentionArgs& args, const Work& work,
                                WarpMemory<kDim, kProducts>& memory) {
  constexpr int32_t kStep = WarpAttention<kDim, kProducts, Rows>::Channels::kStep;
  const WarpTask& task = memory.task;
  merge_next(
      warp, task, memory.of_row,
      [&](int32_t pair) { return out_of(args, task.of[pair].row, task.of[pair].head); },
      [&](int32_t product) { return memory.of_split[own_pair(warp, product)]; },
      [&](int32_t pair, int32_t channel, const FourChannels&) {
        return load_channels<kStep>(partial_at(args, work, task.of[pair].partial) + channel);
      });
}

// Begins a softmax of each pair.
template <int32_t kPairs>
TESSERA_DEVICE void begin_pairs(PartialSums (&sums)[kPairs]) {
  if (lane() < kPairs) {
    sums[lane()] = kNoTokens;
  }
}

// Completes the partial softmaxes of an item.
template <int kDim, int kProducts, class Rows>
TESSERA_DEVICE void put_sums(const WarpAttention<kDim, kProducts, Rows>& warp,
                             const AttentionArgs& args, const Work& work,
                             const WarpMemory<kDim, kProducts>& memory) {
  for (int32_t product = 0; product < kProducts; ++product) {
    const int32_t pair = own_pair(warp, product);
    if (pair < memory.task.pairs && lane() < 4) {
      float* sums = partial_at(args, work, memory.task.of[pair].partial) + args.pages.head_dim;
      sums[0] = memory.of_split[pair].maximum;
      sums[1] = memory.of_split[pair].sum;
    }
  }
}

template <int kDim, int kProducts, class Rows>
TESSERA_DEVICE void finish(const WarpAttention<kDim, kProducts, Rows>& warp,
                           const AttentionArgs& args, const WarpMemory<kDim, kProducts>& memory) {
  constexpr int32_t kStep = WarpAttention<kDim, kProducts, Rows>::Channels::kStep;
  const WarpTask& task = memory.task;
  TESSERA_UNROLL
  for (int32_t product = 0; product < kProducts; ++product) {
    const int32_t pair = own_pair(warp, product);
    if (pair >= task.pairs) {
      continue;
    }
    const TaskPair& of = task.of[pair];
    float* out = out_of(args, of.row, of.head);
    const PartialSums sums = memory.of_row[pair];
    warp.each_four(product, [&](int32_t channel, const FourChannels&) {
      store_channels<kStep>(out + channel, load_channels<kStep>(out + channel).divided(sums.sum));
    });
    if (lane() < 4) {
      put_log_sum(args, of.row, of.head, sums);
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
    begin_pairs(memory.of_split);
    begin_pairs(memory.of_row);
    // All kinds of work share one call of run(), most of the kernel's code: with two calls,
    // registers spilled.
    for (;;) {
      attention.run();
      merge_slice(attention, args, work, memory);
      if (!work.listed() && task.ends_split()) {
        merge_split(attention, args, work, memory);
        begin_pairs(memory.of_split);
      }
      if (task.end == task.all_end) {
        break;
      }
      sync_warp();  // the numbers of this slice have been read
      if (lane() == 0) {
        memory.task.begin_slice(task.end);
      }
      sync_warp();
    }
    if (!work.listed()) {
      return finish(attention, args, memory);
    }
    put_sums(attention, args, work, memory);
    index = task.index + work.warps;
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

// Returns: shape of a launch over a list of at most `items`. `blocks`: of four warps and
// `block_bytes`, for which a multiprocessor has registers. Warps take items until there are none,
// so no more are started than run at once.
LaunchShape shape_of_list(int64_t items, int32_t blocks, int32_t block_bytes, Stream stream) {
  const int32_t warps = warps_of_block(items, stream);
  blocks = std::min(blocks, limits(stream).shared_bytes / (block_bytes + kReservedBytes));
  const int64_t running =
      int64_t{limits(stream).multiprocessors} * blocks * (kWarpsOfBlock / warps);
  return {.grid_x = static_cast<int32_t>(std::min(items, running)), .threads = warps * kWarp};
}

template <int kDim, int kProducts, class Rows>
void start(const AttentionArgs& args, const SequenceSpan* sequences, Work work, Stream stream) {
  using Warp = WarpAttention<kDim, kProducts, Rows>;
  static_assert(
      kBlocks<kProducts, Rows> * (block_memory_bytes<typename Warp::Memory, typename Warp::Parts>(
                                      kWarpsOfBlock, true) +
                                  kReservedBytes) <=
          kMultiprocessorBytes,
      "on Hopper, blocks that have registers also have shared memory");
  // An item that is shared has at least two of the rows' splits.
  const int64_t items = work.max_items / (work.kind == WorkKind::shared ? 2 : 1);
  const auto bytes_of = [sparse = any_sparse(args)](int32_t warps) {
    return block_memory_bytes<typename Warp::Memory, typename Warp::Parts>(warps, sparse);
  };
  LaunchShape shape = work.listed() ? shape_of_list(items, kBlocks<kProducts, Rows>,
                                                    bytes_of(kWarpsOfBlock), stream)
                                    : shape_of_rows(args, work, Warp::kPairs, stream);
  shape.shared_bytes = bytes_of(shape.threads / kWarp);
  shape.most_shared = true;
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

bool in_words(const float* rows, int64_t stride) {
  return reinterpret_cast<uintptr_t>(rows) % sizeof(Words) == 0 &&
         stride * sizeof(float) % sizeof(Words) == 0;
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
  TESSERA_CHECK(
      in_words(args.queries.data, args.queries.stride) && in_words(args.out.data, args.out.stride),
      "attention: rows of queries and out at multiples of 16 bytes");
  for (const SequenceSpan& span : args.sequences) {
    for (const uint8_t tier : {span.tiers.high, span.tiers.low}) {
      TESSERA_CHECK(is_supported(pages.layouts[tier].format),
                    "attention: a page format without a CUDA kernel");
    }
    TESSERA_CHECK(span.count >= 0 && span.first_row >= 0 &&
                      span.first_row + span.count <= args.queries.rows && span.context >= 0,
                  "attention: a sequence's rows");
    TESSERA_CHECK(!span.selects(), "attention: a step for a backend that selects tiles");
  }
}

// Returns: memory for so many partial softmaxes. Launches of one call use it one after another.
float* scratch_for(const AttentionArgs& args, int64_t partials) {
  TESSERA_CHECK(partials * partial_floats(args.pages.head_dim) * int64_t{sizeof(float)} <=
                    std::ssize(args.scratch),
                "attention: scratch is too small");
  return reinterpret_cast<float*>(args.scratch.data());
}

// Computes attention by the lists that plan_attention made, then merges splits or slices.
void start_listed(const AttentionArgs& args, const SequenceSpan* sequences, const ListShape& shape,
                  Work work, Stream stream) {
  const KvPagesView& pages = args.pages;
  const int32_t heads = args.query_heads / pages.kv_heads;
  TESSERA_CHECK(shape.bytes(pages.layers) <= std::ssize(args.plan),
                "attention: no plan, or a plan of another step");
  const SplitLists lists = shape.in(args.plan, pages.layers);
  const SplitCounts& counts = lists.counts[args.layer];  // on the device
  work.slices = &counts.slices;
  work.heads = heads;
  work.max_items = lists.layer_items;
  work.slots = shape.slots;
  work.tokens = shape.tokens;
  work.partials = scratch_for(args, shape.rows() * heads * shape.slots);
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
  merge_partials(args, sequences, work, shape.rows(), stream);
}

}  // namespace

int64_t attention_scratch_bytes(const StepLimits& limits, int32_t query_heads, int32_t head_dim) {
  const int64_t listed =
      int64_t{listed_sequences(limits, kMaxListedRows)} * max_splits(limits.context);
  return std::max(listed, int64_t{limits.tokens}) * query_heads * partial_floats(head_dim) *
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
  const auto start_rows = [&](Work work) {
    if (any(work)) {
      work.partials = scratch_for(args, args.queries.rows * args.query_heads);
      start(args, sequences, work, stream);
    }
  };
  if (shape.splits > 0) {
    start_listed(args, sequences, shape, whole, stream);
  } else {
    start_rows(whole);
  }
  start_rows(prompts);
}

}  // namespace tessera::cuda
