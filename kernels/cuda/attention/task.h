#pragma once

#include "kernels/cuda/attention/queries.h"
#include "kernels/cuda/attention/split_list.h"
#include "kernels/cuda/attention/work.h"

namespace tessera::cuda {

// Work of one launch of attention.
enum class WorkKind : uint8_t {
  prompts,  // sequences that are not listed: a warp computes all splits of a block of pairs
  whole,    // sequences with one new token, likewise
  own,      // by the list: splits, or slices, that one query token reads
  shared,   // by the list: splits that several query tokens read
};
struct Work {
  WorkKind kind = WorkKind::prompts;
  // Partial softmaxes. Listed: [sequences * tokens, query heads, slots, partial_floats], of slices
  // or splits. Otherwise [tokens, query heads, partial_floats], of the split that a warp computes.
  float* partials = nullptr;
  int32_t slots = 1;
  int32_t tokens = 1;  // sequences with at most this number of new tokens are no prompts
  const KvScoring* scorings = nullptr;  // null: no sequence is scored
  // The next seven: own, shared. The host computes addresses, because those that a kernel computes
  // take registers during every tile.
  const int32_t* count = nullptr;    // items of the list
  const int32_t* slices = nullptr;   // SplitCounts::slices
  const SplitItem* items = nullptr;  // item i is items[i * step]
  int32_t step = 1;
  int64_t max_items = 0;
  int32_t heads = 0;  // gqa_ratio
  int32_t warps = 0;  // of the launch

  // Returns: true if the launch is for such a sequence.
  TESSERA_BOTH bool serves(const SequenceSpan& span) const {
    return span.count > 0 && (span.count > tokens) == (kind == WorkKind::prompts);
  }
  TESSERA_BOTH bool listed() const { return kind == WorkKind::own || kind == WorkKind::shared; }
};

// (sequence, KV head) of a block, encoded in block_x. Not of listed work.
struct RowPlace {
  int32_t sequence;
  int32_t kv_head;
};
TESSERA_DEVICE RowPlace place_of_block(const AttentionArgs& args) {
  return {simt::block_x() / args.pages.kv_heads, simt::block_x() % args.pages.kv_heads};
}

// Returns: row of args.weights that receives the scores of a decoding sequence, or null. `tiles`:
// tiles of its row.
TESSERA_DEVICE float* scores_left(const AttentionArgs& args, const Work& work,
                                  const SequenceSpan& span, RowPlace place, int32_t tiles) {
  if (work.scorings == nullptr || !has_attention_weight_rows(args, span, place.sequence) ||
      !work.scorings[place.sequence].includes(span.context)) {
    return nullptr;
  }
  simt::check(tiles * attention_weight_tile_floats(args.query_heads / args.pages.kv_heads) <=
              args.weights.cols);
  return args.weights.data +
         (int64_t{place.sequence} * args.pages.kv_heads + place.kv_head) * args.weights.stride;
}

// Index of the warp's first task: in the list, or of a block of pairs of its row. The first items
// of a list are those of each block's first warp, so that a short list reaches all multiprocessors.
TESSERA_DEVICE int32_t first_index(const Work& work) {
  return work.listed() ? simt::warp() * simt::grid_x() + simt::block_x()
                       : simt::block_y() * (simt::threads() / simt::kWarp) + simt::warp();
}

// Writes the task of an item. Returns: false if the list has no such item.
template <int kPairs>
TESSERA_DEVICE bool find_listed(const AttentionArgs& args, const SequenceSpan* sequences,
                                const Work& work, int32_t index, WarpTask& task) {
  if (index >= *work.count) {
    return false;
  }
  const SplitItem& item = work.items[index * work.step];
  const RowPlace place{item.queries[0] / work.tokens, item.kv_head};
  const SequenceSpan span = sequences[place.sequence];
  const int32_t heads = work.heads;
  const int32_t group = (span.context + item.queries[0] % work.tokens) / kKvGroup;
  const int32_t first_dense = span.count > 1 ? dense_groups_before(sequences, place.sequence) : 0;
  const RowTokens row = StepRows{args.pages, args.layer, args.dense.data()}.tokens(
      span, place.kv_head, first_dense, group);
  const int32_t heads_left = heads - item.first_head;
  const int32_t own_heads = heads_left < kMaxTaskPairs ? heads_left : kMaxTaskPairs;
  const int32_t slices = *work.slices;
  simt::check(item.count * own_heads <= kPairs && item.first_slice < slice_count(row.tiles()) &&
              item.first_slice / slices < work.slots);
  simt::sync_warp();  // the previous task has been read
  if (simt::lane() == 0) {
    task.index = index;
    task.span = span;
    task.row = row;
    task.group = group;
    task.pairs = item.count * own_heads;
    task.first_head = place.kv_head * heads;
    task.heads = heads;
    task.begin(item.first_slice * slice_tiles(row.tiles()), slices * slice_tiles(row.tiles()));
    task.scores_left = scores_left(args, work, span, place, row.tiles());
  }
  for (int32_t i = 0; i < item.count; ++i) {
    const int32_t query = item.queries[i];
    const SequenceSpan& own = sequences[query / work.tokens];
    if (simt::lane() < own_heads) {
      const int32_t head = place.kv_head * heads + item.first_head + simt::lane();
      task.of[i * own_heads + simt::lane()] = {
          .partial = (query * args.query_heads + head) * work.slots + item.first_slice / slices,
          .row = own.first_row + query % work.tokens,
          .head = head,
          .position = own.context + query % work.tokens};
    }
  }
  simt::sync_warp();
  return true;
}

// Writes a task of all splits of a block of pairs. Rows of one format are decoded, with all query
// heads of a KV head in one block. Returns: false if the row has no such block.
template <int kPairs, class Rows>
TESSERA_DEVICE bool find_whole(const AttentionArgs& args, const SequenceSpan* sequences,
                               const Work& work, int32_t index, WarpTask& task) {
  const RowPlace place = place_of_block(args);
  const SequenceSpan span = sequences[place.sequence];
  const int32_t heads = args.query_heads / args.pages.kv_heads;
  const bool decode = Rows::kOneFormat || work.kind == WorkKind::whole;
  const PairBlocks blocks{span.context, span.count, heads, kPairs};
  if (!work.serves(span) || index >= (Rows::kOneFormat ? 1 : blocks.blocks())) {
    return false;
  }
  const PairBlock block =
      Rows::kOneFormat ? PairBlock{span.context / kKvGroup, 0, heads} : blocks.block(index);
  const int32_t first_dense = decode ? 0 : dense_groups_before(sequences, place.sequence);
  const RowTokens row = StepRows{args.pages, args.layer, args.dense.data()}.tokens(
      span, place.kv_head, first_dense, block.group);
  if (simt::lane() == 0) {
    task.span = span;
    task.row = row;
    task.group = block.group;
    task.pairs = block.pairs;
    task.first_head = place.kv_head * heads;
    task.heads = heads;
    task.begin(0, row.tiles());
    task.scores_left = decode ? scores_left(args, work, span, place, row.tiles()) : nullptr;
  }
  if (simt::lane() < block.pairs) {
    const int32_t pair = block.first_pair + simt::lane();
    const int32_t batch_row = span.first_row + pair / heads;
    const int32_t head = place.kv_head * heads + pair % heads;
    task.of[simt::lane()] = {.partial = batch_row * args.query_heads + head,
                             .row = batch_row,
                             .head = head,
                             .position = span.context + pair / heads};
  }
  simt::sync_warp();
  return true;
}

}  // namespace tessera::cuda
