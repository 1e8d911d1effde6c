#include <algorithm>
#include <atomic>
#include <cmath>
#include <optional>
#include <span>
#include <thread>

#include "base/check.h"
#include "kernels/cpu/attention/attention_items.h"
#include "kernels/cpu/attention/attention_ops.h"
#include "kernels/cpu/attention/attention_plan.h"
#include "kernels/cpu/attention/partials.h"
#include "kernels/cpu/attention/rotated_pairs.h"
#include "kernels/cpu/attention/row_tokens.h"
#include "kernels/cpu/attention/shared_runs.h"
#include "kernels/cpu/attention/tile_selection.h"
#include "kernels/cpu/attention/tile_walk.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "kernels/cpu/tiles/pair_block.h"

namespace tessera {
namespace {

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kLn2 = 0.693147180559945309f;

// Tiles [first, end) of an item in one split. `last` is the last tile of the item. `after` is the
// first tile of the thread's next item, to be prefetched; null: none.
struct Stretch {
  int32_t first;
  int32_t end;
  int32_t last;
  const KvTile* after;
};

struct Attention {
  const AttentionArgs& args;
  const AttentionKernels& kernels;
  const TileShapes& shapes;
  const int32_t head_dim;
  const int32_t gqa_ratio;
  const AttentionPlan& plan;
  const SharedRuns& shared;
  std::atomic<int64_t>& runs_left;  // runs of `shared` that are not done
  const Partials& partials;

  struct Task;

  int64_t row_of(const Item& item, int32_t pair) const {
    return (item.block.first_pair + pair) / gqa_ratio;
  }
  int32_t head_in_kv_head(const Item& item, int32_t pair) const {
    return static_cast<int32_t>((item.block.first_pair + pair) % gqa_ratio);
  }
  float factor() const { return args.scale * kLog2E; }  // of queries
  Item item_at(const AttentionPlan::Place& place) const;
  int32_t position(const SequenceSpan& span, const BlockCut::Block& block, int32_t pair) const {
    return span.context + static_cast<int32_t>((block.first_pair + pair) / gqa_ratio);
  }
  float* out(const SequenceSpan& span, int64_t row, int32_t head) const {
    return args.out.row(span.first_row + row).data() + int64_t{head} * head_dim;
  }

  // Returns: the row of args.weights for row `row` of the step; null if attention writes none.
  float* weights_left(int64_t row, int32_t tiles) const {
    const auto index = static_cast<size_t>(row / args.pages.kv_heads);
    if (!leaves_attention_weights(args, index)) {
      return nullptr;
    }
    TESSERA_CHECK(tiles * attention_weight_tile_floats(gqa_ratio) <= args.weights.cols,
                  "attention: a row of weights is too short");
    return args.weights.row(row).data();
  }

  void run(int64_t first_item, int64_t end_item) const;
  void run_shared(int64_t run_index) const;
  void await_runs() const;
  void load(const Task& task, PairBlock& block) const;
  void load_shared(const SharedRun& run, const TileWalk& walk, PairBlock& block) const;
  void clear(PairBlock& block) const;
  TileRange range_of(const Item& item, int32_t tile) const;
  void set_visible(const Item& item, PairBlock& block, int32_t tile, const TileRange& range) const;
  void attend(const Item& item, PairBlock& block, const Stretch& tiles) const;
  void attend_all_splits(const Task& task, PairBlock& block, const KvTile* after) const;
  void attend_one_split(const Task& task, PairBlock& block, const KvTile* after) const;
  void merge_splits(int64_t row, int32_t head_in_kv_head) const;
  void write_log_sum(int64_t row, int32_t head, float maximum, float sum) const;
};

// An item with its place and its tiles. It is resolved before the item begins, so that its first
// tile is prefetched by then.
struct Attention::Task {
  Task(const Attention& of, int64_t index)
      : place(of.plan.at(index)), work(of.plan.work(place.row)), item(of.item_at(place)) {
    const int32_t first_seen = first_visible(of.args, item.first_position) / kAttentionTile;
    const int32_t split = work.first_split + place.split;
    done = work.splits > 0 ? of.shared.tiles(place.row, split) : 0;
    first_tile = std::max(split * kSplitTiles, first_seen) + done;
    end_tile = item.walk.tiles();
    if (work.splits > 0) {
      end_tile = std::min(end_tile, (split + 1) * kSplitTiles);
    }
    if (first_tile < end_tile) {
      const TileRange range = of.range_of(item, first_tile);
      item.walk.find(first_tile, range.begin, range.end, first);
    }
  }
  const KvTile* first_read() const { return first_tile < end_tile ? &first : nullptr; }

  AttentionPlan::Place place;
  const RowWork& work;
  Item item;
  int32_t done;        // tiles of the split that a shared run has read
  int32_t first_tile;  // [first_tile, end_tile) of the split, or of a row that is not split
  int32_t end_tile;
  KvTile first;
};

Item Attention::item_at(const AttentionPlan::Place& place) const {
  const SequenceSpan& span = plan.sequence(place.row);
  const int32_t kv_head = plan.kv_head(place.row);
  const BlockCut::Block& block = place.block;
  const RowTokens tokens = plan.tokens(place.row, block.group);
  return {span,
          kv_head,
          block,
          TileWalk(args.pages, shapes, tokens, span.tiers),
          weights_left(place.row, tokens.tiles()),
          position(span, block, 0),
          position(span, block, block.pairs - 1)};
}

// Runs items one after another. During each item the first tile of the next one is prefetched.
void Attention::run(int64_t first_item, int64_t end_item) const {
  std::optional<Task> tasks[2];
  tasks[first_item % 2].emplace(*this, first_item);
  for (int64_t i = first_item; i < end_item; ++i) {
    const bool is_last = i + 1 == end_item;
    const KvTile* after = is_last ? nullptr : tasks[(i + 1) % 2].emplace(*this, i + 1).first_read();
    const Task& task = *tasks[i % 2];
    PairBlock block;  // 350 KiB, not initialised: only the parts in use are written
    block.head_dim = head_dim;
    block.pairs = task.item.block.pairs;
    task.work.splits > 0 ? attend_one_split(task, block, after)
                         : attend_all_splits(task, block, after);
  }
}

// Runs the pairs of all sequences of a shared run, over tiles that all of them see as a whole.
void Attention::run_shared(int64_t run_index) const {
  const SharedRun& run = shared.run(run_index);
  const SequenceSpan& first = args.sequences[static_cast<size_t>(shared.sequence(run, 0))];
  const RowTokens tokens = row_tokens(args, first, 0, run.kv_head, first.last_group());
  const TileWalk walk(args.pages, shapes, tokens, first.tiers);
  PairBlock block;
  block.head_dim = head_dim;
  block.pairs = run.sequences * gqa_ratio;
  load_shared(run, walk, block);
  clear(block);
  const Item item{first,         run.kv_head,  {first.last_group(), 0, block.pairs}, walk, nullptr,
                  first.context, first.context};
  attend(item, block, {run.first_tile, run.end_tile, run.end_tile - 1, nullptr});
  if (run.ends_split()) {
    turn_values(kernels, block, false);
  }
  for (int32_t pair = 0; pair < block.pairs; ++pair) {
    const int64_t row =
        int64_t{shared.sequence(run, pair / gqa_ratio)} * args.pages.kv_heads + run.kv_head;
    const int64_t index = plan.work(row).first_partial +
                          int64_t{run.first_tile / kSplitTiles} * gqa_ratio + pair % gqa_ratio;
    if (run.ends_split()) {
      kernels.finish(block, pair, partials.at(index));
    } else {
      partials.save(block, pair, index);
    }
  }
}

// Runs start before any item, so each is done or is being computed by another thread.
void Attention::await_runs() const {
  while (runs_left.load(std::memory_order_acquire) > 0) {
    std::this_thread::yield();
  }
}

void Attention::load_shared(const SharedRun& run, const TileWalk& walk, PairBlock& block) const {
  KvTile tile;
  walk.find(run.first_tile, 0, kAttentionTile, tile);
  fetch_tile(tile);
  const KvFormat format = tile.shape->layout.format;
  for (int32_t pair = 0; pair < block.pairs; ++pair) {
    block.first_seen[pair] = 0;
    block.end_seen[pair] = run.end_tile * kAttentionTile;
    const SequenceSpan& span =
        args.sequences[static_cast<size_t>(shared.sequence(run, pair / gqa_ratio))];
    const int32_t head = run.kv_head * gqa_ratio + pair % gqa_ratio;
    const float* query = args.queries.row(span.first_row).data() + int64_t{head} * head_dim;
    block.query_rows[pair] = query;
    if (!format.is_codes()) {
      (format.is_sparse() ? kernels.load_query_tokens : kernels.load_query)(block, pair, query,
                                                                            factor());
    }
  }
  if (format.is_codes()) {
    load_query_codes(kernels, block, format.rotated, factor());
  }
}

void Attention::load(const Task& task, PairBlock& block) const {
  const Item& item = task.item;
  for (int32_t pair = 0; pair < block.pairs; ++pair) {
    const int32_t at = position(item.sequence, item.block, pair);
    block.end_seen[pair] = at + 1;
    block.first_seen[pair] = first_visible(args, at);
  }
  fetch_tile(task.first);  // while the queries are prepared
  const bool floats = item.walk.any_floats(task.end_tile);
  const bool codes = item.walk.any_codes(task.first_tile, task.end_tile);
  const bool sparse = item.walk.any_sparse(task.first_tile, task.end_tile);
  for (int32_t pair = 0; pair < block.pairs; ++pair) {
    const int64_t row = item.sequence.first_row + row_of(item, pair);
    const int32_t head = item.kv_head * gqa_ratio + head_in_kv_head(item, pair);
    const float* query = args.queries.row(row).data() + int64_t{head} * head_dim;
    block.query_rows[pair] = query;
    if (floats) {
      kernels.load_query(block, pair, query, factor());
    }
    if (sparse) {
      kernels.load_query_tokens(block, pair, query, factor());
    }
  }
  if (codes) {
    load_query_codes(kernels, block, task.first.shape->layout.format.rotated, factor());
  }
}

// A pair sees all closed tokens, except those that a sliding window has passed. With such a window,
// places are positions. In the dense group a pair sees tokens up to its own position. If the
// residual buffer keeps the end of the previous group to be read dense, a pair sees that too.
TileRange Attention::range_of(const Item& item, int32_t tile) const {
  const int32_t first_seen = first_visible(args, item.first_position);
  if (item.walk.is_dense(tile)) {
    const int32_t first = item.block.group * kKvGroup;
    const int32_t end =
        older_dense(args, item.sequence) > 0 ? kKvGroup : item.last_position + 1 - first;
    return {first, std::max(first_seen - first, 0), end, false};
  }
  const int32_t first = tile * kAttentionTile;
  const int32_t end = item.walk.tokens(tile);
  return {first, std::max(first_seen - first, 0), end,
          end == kAttentionTile && first_visible(args, item.last_position) <= first};
}

void Attention::set_visible(const Item& item, PairBlock& block, int32_t tile,
                            const TileRange& range) const {
  if (range.whole) {
    std::fill_n(block.visible, block.pairs, ~uint64_t{0});
    return;
  }
  const bool dense = item.walk.is_dense(tile);
  const uint64_t older =
      dense ? bits_between(kKvGroup - older_dense(args, item.sequence), kKvGroup) : 0;
  for (int32_t pair = 0; pair < block.pairs; ++pair) {
    const int32_t end = dense ? block.end_seen[pair] - range.first : range.end;
    block.visible[pair] = older | bits_between(block.first_seen[pair] - range.first, end);
  }
}

// Resets the softmax state at the start of a split.
void Attention::clear(PairBlock& block) const {
  std::fill_n(block.maxima, PairBlock::kPairs, PairBlock::kLowest);
  std::fill_n(block.sums, block.pairs * KvPageLayout::kKeyTile, 0.0f);
  std::fill_n(block.zeros, block.pairs * KvPageLayout::kKeyTile, 0.0f);
  std::fill_n(block.values, int64_t{block.pairs} * head_dim, 0.0f);
  block.rotated_values = false;
}

// Continues the online softmax of the item's pairs over tiles of one split.
void Attention::attend(const Item& item, PairBlock& block, const Stretch& tiles) const {
  KvTile found[2];
  TileRange range = range_of(item, tiles.first);
  item.walk.find(tiles.first, range.begin, range.end, found[tiles.first % 2]);
  kernels.begin_tiles(block);
  for (int32_t tile = tiles.first; tile < tiles.end; ++tile) {
    const TileRange current = range;
    const KvTile* next = tiles.after;
    if (tile < tiles.last) {
      range = range_of(item, tile + 1);
      item.walk.find(tile + 1, range.begin, range.end, found[(tile + 1) % 2]);
      next = &found[(tile + 1) % 2];
    }
    const KvFormat format = found[tile % 2].shape->layout.format;
    turn_query_codes(kernels, block, format, factor());
    turn_values(kernels, block, format.rotated);
    set_visible(item, block, tile, current);
    float* left =
        item.left == nullptr ? nullptr : item.left + tile * attention_weight_tile_floats(gqa_ratio);
    kernels.add_tile(block,
                     {found[tile % 2], next, current.begin, current.end, current.whole, left});
  }
  kernels.end_tiles(block);
}

void Attention::write_log_sum(int64_t row, int32_t head, float maximum, float sum) const {
  if (args.log_sums.data != nullptr) {
    args.log_sums.row(row)[static_cast<size_t>(head)] = maximum * kLn2 + std::log(sum);
  }
}

void Attention::attend_all_splits(const Task& task, PairBlock& block, const KvTile* after) const {
  const Item& item = task.item;
  const int32_t tiles = task.end_tile;
  load(task, block);
  float maxima[PairBlock::kPairs];
  float sums[PairBlock::kPairs] = {};
  std::fill_n(maxima, PairBlock::kPairs, PairBlock::kLowest);
  const auto head_of = [&](int32_t pair) {
    return item.kv_head * gqa_ratio + head_in_kv_head(item, pair);
  };
  const auto out_of = [&](int32_t pair) {
    return out(item.sequence, row_of(item, pair), head_of(pair));
  };
  for (int32_t pair = 0; pair < block.pairs; ++pair) {
    std::fill_n(out_of(pair), head_dim, 0.0f);
  }
  for (int32_t tile = task.first_tile; tile < tiles;) {
    const int32_t split_end = std::min(tiles, (tile / kSplitTiles + 1) * kSplitTiles);
    clear(block);
    attend(item, block, {tile, split_end, tiles - 1, after});
    turn_values(kernels, block, false);
    for (int32_t pair = 0; pair < block.pairs; ++pair) {
      float maximum;
      float sum;
      const Partial split{&maximum, &sum, block.values + int64_t{pair} * head_dim};
      kernels.finish(block, pair, split);
      kernels.merge({&maxima[pair], &sums[pair], out_of(pair)}, split, head_dim);
    }
    tile = split_end;
  }
  for (int32_t pair = 0; pair < block.pairs; ++pair) {
    kernels.normalise(out_of(pair), sums[pair], head_dim);
    write_log_sum(item.sequence.first_row + row_of(item, pair), head_of(pair), maxima[pair],
                  sums[pair]);
  }
}

void Attention::attend_one_split(const Task& task, PairBlock& block, const KvTile* after) const {
  const Item& item = task.item;
  if (task.first_tile == task.end_tile) {
    return;
  }
  load(task, block);
  clear(block);
  const int64_t first_partial = task.work.first_partial + int64_t{task.place.split} * gqa_ratio;
  if (task.done > 0) {
    await_runs();
  }
  for (int32_t pair = 0; pair < block.pairs && task.done > 0; ++pair) {
    partials.restore(block, pair, first_partial + head_in_kv_head(item, pair));
  }
  if (task.done > 0) {  // a run reads tiles of the high tier
    block.rotated_values = args.pages.layouts[item.sequence.tiers.high].format.rotated;
  }
  attend(item, block, {task.first_tile, task.end_tile, task.end_tile - 1, after});
  turn_values(kernels, block, false);
  for (int32_t pair = 0; pair < block.pairs; ++pair) {
    kernels.finish(block, pair, partials.at(first_partial + head_in_kv_head(item, pair)));
  }
}

// Merges the splits of the only query row of a sequence. Does nothing if the row was not split.
void Attention::merge_splits(int64_t row, int32_t head_in_kv_head) const {
  const RowWork& work = plan.work(row);
  if (work.splits == 0) {
    return;
  }
  const SequenceSpan& sequence = plan.sequence(row);
  const int32_t head = plan.kv_head(row) * gqa_ratio + head_in_kv_head;
  float maximum = PairBlock::kLowest;
  float sum = 0;
  float* values = out(sequence, 0, head);
  std::fill_n(values, head_dim, 0.0f);
  for (int32_t split = 0; split < work.splits; ++split) {
    const int64_t index = work.first_partial + int64_t{split} * gqa_ratio + head_in_kv_head;
    kernels.merge({&maximum, &sum, values}, partials.at(index), head_dim);
  }
  kernels.normalise(values, sum, head_dim);
  write_log_sum(sequence.first_row, head, maximum, sum);
}

void run_attention(const AttentionKernels& kernels, const AttentionArgs& args, Stream stream) {
  check_attention(args);
  TESSERA_CHECK(args.pages.head_dim % kHeadDimMultiple == 0,
                "attention: head_dim is a multiple of 8, or else the scalar backend serves it");
  const int64_t rows = std::ssize(args.sequences) * args.pages.kv_heads;
  const TileSelection selection(args, args.scratch.data());
  const int64_t offset = selection.bytes() + AttentionPlan::scratch_bytes(rows);
  const int64_t scratch_bytes = static_cast<int64_t>(args.scratch.size());
  TESSERA_CHECK(offset <= scratch_bytes, "attention: scratch is too small");
  TESSERA_CHECK(reinterpret_cast<uintptr_t>(args.scratch.data()) % alignof(RowWork) == 0,
                "attention: scratch is not aligned");
  const int32_t head_dim = args.pages.head_dim;
  ThreadPool& pool = ThreadPool::of(stream);
  if (selection.any()) {
    pool.parallel_for(rows, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        selection.choose(row, kernels.sketch);
      }
    });
  }
  AttentionPlan plan(args, selection, args.scratch.data() + selection.bytes());
  const int64_t runs_bytes =
      SharedRuns::scratch_bytes(std::ssize(args.sequences), args.pages.kv_heads, plan.splits());
  TESSERA_CHECK(offset + runs_bytes <= scratch_bytes, "attention: scratch is too small");
  const SharedRuns shared(args, plan.splits(), pool.threads(), args.scratch.data() + offset);
  plan.cut_items(shared, pool.threads());
  TESSERA_CHECK(offset + runs_bytes + Partials::bytes(plan.partials(), head_dim) <= scratch_bytes,
                "attention: scratch is too small");
  const Partials partials(args.scratch.data() + offset + runs_bytes, head_dim);
  const TileShapes shapes(args);
  std::atomic<int64_t> runs_left = shared.count();
  const int64_t gqa_ratio = args.query_heads / args.pages.kv_heads;
  const Attention attention{.args = args,
                            .kernels = kernels,
                            .shapes = shapes,
                            .head_dim = head_dim,
                            .gqa_ratio = static_cast<int32_t>(gqa_ratio),
                            .plan = plan,
                            .shared = shared,
                            .runs_left = runs_left,
                            .partials = partials};
  const int64_t at_once = plan.items_at_once();
  const int64_t turns = shared.count() + div_ceil(plan.items(), at_once);
  pool.parallel_for(turns, 1, [&](int64_t index, int64_t, int) {
    if (index < shared.count()) {
      attention.run_shared(index);
      runs_left.fetch_sub(1, std::memory_order_release);
    } else {
      const int64_t first_item = (index - shared.count()) * at_once;
      attention.run(first_item, std::min(first_item + at_once, plan.items()));
    }
  });
  if (plan.partials() > 0) {
    pool.parallel_for(rows * gqa_ratio, args.query_heads, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        attention.merge_splits(i / gqa_ratio, static_cast<int32_t>(i % gqa_ratio));
      }
    });
  }
}

}  // namespace

namespace avx2 {
// An upper bound: rows are counted as if each query head had its own KV head.
int64_t attention_scratch_bytes(const StepLimits& limits, int32_t query_heads, int32_t head_dim) {
  const int64_t sequences = std::min(limits.sequences, limits.tokens);
  const int64_t rows = sequences * query_heads;
  const int64_t splits = AttentionPlan::max_splits(limits.context);
  return AttentionPlan::scratch_bytes(rows) +
         SharedRuns::scratch_bytes(sequences, query_heads, splits) +
         Partials::bytes(rows * splits, head_dim) +
         (limits.selects ? TileSelection::scratch_bytes(rows, 1, limits.context) : 0);
}
void attention(const AttentionArgs& args, Stream stream) {
  run_attention(kAttentionKernels, args, stream);
}
}  // namespace avx2

namespace avx512 {
void attention(const AttentionArgs& args, Stream stream) {
  run_attention(kAttentionKernels, args, stream);
}
}  // namespace avx512

void avx512_fp16::attention(const AttentionArgs& args, Stream stream) {
  run_attention(avx512::kFp16AttentionKernels, args, stream);
}
void amx::attention(const AttentionArgs& args, Stream stream) {
  run_attention(attention_kernels(), args, stream);
}

}  // namespace tessera
