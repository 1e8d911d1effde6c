#include "kernels/cuda/attention/merge.h"

namespace tessera::cuda {
namespace {

using namespace simt;

constexpr int32_t kThreads = kWarpsOfBlock * kWarp;
constexpr int32_t kSplitsOfLane = kMaxSplits / kWarp;

// Shared memory of a warp, which merges one pair.
struct MergeMemory {
  // Factors of each split, and of each slice in its split.
  MergeFactors splits[kMaxSplits];
  MergeFactors slices[kMaxSplits * kSlicesOfSplit];
};

// Partial softmaxes of a pair.
struct PairPartials {
  const float* first;  // [slots, partial_floats]
  int32_t slots;
  int32_t slots_of_split;  // 1, or kSlicesOfSplit
  int32_t head_dim;

  TESSERA_DEVICE int32_t splits() const { return (slots + slots_of_split - 1) / slots_of_split; }
  TESSERA_DEVICE const float* slot(int32_t index) const {
    return first + index * partial_floats(head_dim);
  }
  TESSERA_DEVICE PartialSums sums(int32_t index) const {
    return {slot(index)[head_dim], slot(index)[head_dim + 1]};
  }
};

// Factors of an empty partial softmax. Its values are not defined, so nothing multiplies them.
constexpr MergeFactors kOfNothing{1, -1};

// Merges the next partial softmax, unless it is empty. Returns: its factors.
TESSERA_DEVICE MergeFactors merge_if_any(PartialSums& sums, const PartialSums& next) {
  return next.sum == 0 ? kOfNothing : merge(sums, next);
}

// Merges the slices of each split, one split a lane.
TESSERA_DEVICE void merge_slices(const PairPartials& pair, MergeMemory& memory,
                                 PartialSums (&splits)[kSplitsOfLane]) {
  TESSERA_UNROLL
  for (int32_t i = 0; i < kSplitsOfLane; ++i) {
    const int32_t split = i * kWarp + lane();
    splits[i] = kNoTokens;
    PartialSums slices[kSlicesOfSplit];
    TESSERA_UNROLL
    for (int32_t slice = 0; slice < kSlicesOfSplit; ++slice) {
      const int32_t slot = split * pair.slots_of_split + slice;
      slices[slice] =
          slice < pair.slots_of_split && slot < pair.slots ? pair.sums(slot) : kNoTokens;
    }
    TESSERA_UNROLL
    for (int32_t slice = 0; slice < kSlicesOfSplit; ++slice) {
      memory.slices[split * kSlicesOfSplit + slice] = merge_if_any(splits[i], slices[slice]);
    }
  }
}

// Merges the splits. A split's factors follow from maxima alone, so each lane has those of its own.
// Returns: the partial softmax of all.
TESSERA_DEVICE PartialSums merge_splits(MergeMemory& memory,
                                        const PartialSums (&splits)[kSplitsOfLane]) {
  PartialSums all = kNoTokens;
  TESSERA_UNROLL
  for (int32_t i = 0; i < kSplitsOfLane; ++i) {
    float until = splits[i].maximum;  // largest of the splits up to the lane's
    TESSERA_UNROLL
    for (int32_t distance = 1; distance < kWarp; distance *= 2) {
      until = max(until, shuffle(until, lane() >= distance ? lane() - distance : lane()));
    }
    const float previous = shuffle(until, lane() > 0 ? lane() - 1 : 0);
    PartialSums before{lane() > 0 ? max(all.maximum, previous) : all.maximum, 0};
    const MergeFactors own = merge_if_any(before, splits[i]);
    memory.splits[i * kWarp + lane()] = own;
    for (int32_t from = 0; from < kWarp; ++from) {
      const MergeFactors factors{shuffle(own.before, from), shuffle(own.next, from)};
      all.sum = factors.sum(all.sum, shuffle(splits[i].sum, from));
    }
    all.maximum = max(all.maximum, shuffle(until, kWarp - 1));
  }
  return all;
}

TESSERA_DEVICE FourChannels add(const FourChannels& so_far, const MergeFactors& factors,
                                const FourChannels& added) {
  return factors.next == kOfNothing.next ? so_far : factors.sum(so_far, added);
}

// Returns: merged values of four channels, from `channel` on.
template <int32_t kSlotsOfSplit>
TESSERA_DEVICE FourChannels merge_values(const PairPartials& pair, const MergeMemory& memory,
                                         int32_t channel) {
  FourChannels value = {};
  TESSERA_UNROLL_BY(4)
  for (int32_t split = 0; split < pair.splits(); ++split) {
    FourChannels slots[kSlotsOfSplit];
    TESSERA_UNROLL
    for (int32_t i = 0; i < kSlotsOfSplit; ++i) {
      const int32_t slot = split * kSlotsOfSplit + i;
      slots[i] = load_channels(pair.slot(slot < pair.slots ? slot : pair.slots - 1) + channel);
    }
    FourChannels of_split = {};
    TESSERA_UNROLL
    for (int32_t i = 0; i < kSlotsOfSplit; ++i) {
      of_split = kSlotsOfSplit == 1
                     ? slots[i]
                     : add(of_split, memory.slices[split * kSlotsOfSplit + i], slots[i]);
    }
    value = add(value, memory.splits[split], of_split);
  }
  return value;
}

// One warp for each pair of a row.
TESSERA_KERNEL(kThreads)
merge_kernel(AttentionArgs args, const SequenceSpan* sequences, Work work) {
  const int32_t query = block_x() / args.pages.kv_heads;
  const int32_t kv_head = block_x() % args.pages.kv_heads;
  const int32_t token = query % work.tokens;
  const SequenceSpan span = sequences[query / work.tokens];
  const int32_t head_of_row = block_y() * kWarpsOfBlock + warp();
  if (!work.serves(span) || token >= span.count || head_of_row >= work.heads) {
    return;
  }
  // The address of the row's own group is not used.
  const int32_t tiles = StepRows{args.pages, args.layer, args.dense.data()}
                            .tokens(span, kv_head, 0, (span.context + token) / kKvGroup)
                            .tiles();
  const int32_t head = kv_head * work.heads + head_of_row;
  const bool sliced = *work.slices == 1;
  const PairPartials pair{partial_at(args, work, (query * args.query_heads + head) * work.slots),
                          sliced ? slice_count(tiles) : split_count(tiles),
                          sliced ? kSlicesOfSplit : 1, args.pages.head_dim};
  MergeMemory& memory = (&shared<MergeMemory>())[warp()];
  PartialSums splits[kSplitsOfLane];
  merge_slices(pair, memory, splits);
  const PartialSums all = merge_splits(memory, splits);
  sync_warp();
  const int32_t channel = 4 * lane();
  if (channel < pair.head_dim) {
    FourChannels value = sliced ? merge_values<kSlicesOfSplit>(pair, memory, channel)
                                : merge_values<1>(pair, memory, channel);
    store_channels(out_of(args, span.first_row + token, head) + channel, value.divided(all.sum));
  }
  if (lane() == 0) {
    put_log_sum(args, span.first_row + token, head, all);
  }
}

}  // namespace

void merge_partials(const AttentionArgs& args, const SequenceSpan* sequences, const Work& work,
                    int64_t rows, Stream stream) {
  launch(stream,
         {.grid_x = static_cast<int32_t>(rows),
          .grid_y = static_cast<int32_t>(div_ceil(work.heads, kWarpsOfBlock)),
          .threads = kThreads,
          .shared_bytes = kWarpsOfBlock * static_cast<int32_t>(sizeof(MergeMemory))},
         merge_kernel, args, sequences, work);
}

}  // namespace tessera::cuda
