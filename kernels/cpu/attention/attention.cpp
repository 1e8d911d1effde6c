#include <algorithm>
#include <atomic>
#include <cmath>
#include <span>
#include <thread>

#include "kernels/check.h"
#include "kernels/cpu/attention/attention_items.h"
#include "kernels/cpu/attention/ops.h"
#include "kernels/cpu/attention/pair_block.h"
#include "kernels/cpu/attention/partials.h"
#include "kernels/cpu/attention/row_tokens.h"
#include "kernels/cpu/attention/shared_runs.h"
#include "kernels/cpu/attention/tile_walk.h"
#include "kernels/cpu/thread_pool.h"

namespace tessera {
namespace {

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kLn2 = 0.693147180559945309f;

// As many rows a thread should have at least, so that none waits long for the others.
constexpr int64_t kRowsOfAThread = 8;

struct Attention {
  const AttentionArgs& args;
  const AttentionKernels& kernels;
  const TileShapes& shapes;
  const int32_t threads;
  const int32_t head_dim;
  const int32_t group;
  RowWork* const work;  // [sequences * kv_heads + 1]
  const SharedRuns* shared;
  std::atomic<int64_t>* runs_left;  // of `shared`, that are not done
  const Partials* partials;

  int64_t rows() const { return std::ssize(args.sequences) * args.pages.kv_heads; }
  const SequenceSpan& sequence(int64_t row) const {
    return args.sequences[static_cast<size_t>(row / args.pages.kv_heads)];
  }
  int64_t items() const { return work[rows()].first_item; }
  int64_t partial_count() const { return work[rows()].first_partial; }

  int64_t row_of(const Item& item, int32_t pair) const {
    return (item.block.first_pair + pair) / group;
  }
  int32_t head_in_group(const Item& item, int32_t pair) const {
    return static_cast<int32_t>((item.block.first_pair + pair) % group);
  }
  int32_t position(const Item& item, int32_t pair) const {
    return item.sequence.context + static_cast<int32_t>(row_of(item, pair));
  }
  float* out(const SequenceSpan& span, int64_t row, int32_t head) const {
    return args.out.row(span.first_row + row).data() + int64_t{head} * head_dim;
  }

  // Of a row of the step, null where nobody wants them.
  float* weights_left(int64_t row, int32_t tiles) const {
    const auto index = static_cast<size_t>(row / args.pages.kv_heads);
    if (!leaves_weights(args, index)) {
      return nullptr;
    }
    TESSERA_CHECK(tiles * kv_weight_tile_floats(group) <= args.weights.cols,
                  "attention: a row of weights is too short");
    return args.weights.row(row).data();
  }

  int32_t cut_spans() const;
  void plan() const;
  void run(int64_t item_index) const;
  void run_shared(int64_t run_index) const;
  void await_runs() const;
  void load(const Item& item, PairBlock& block, int32_t first_tile, int32_t end_tile) const;
  void load_shared(const SharedRun& run, const TileWalk& walk, PairBlock& block) const;
  void clear(PairBlock& block) const;
  TileRange range_of(const Item& item, const PairBlock& block, int32_t tile) const;
  void see(const Item& item, PairBlock& block, int32_t tile, const TileRange& range) const;
  void attend(const Item& item, PairBlock& block, int32_t first_tile, int32_t end_tile,
              int32_t last_tile) const;
  void attend_all_spans(const Item& item, PairBlock& block) const;
  void attend_one_span(const Item& item, PairBlock& block, const RowWork& place,
                       int32_t span) const;
  void merge_spans(int64_t row, int32_t head_in_group) const;
  void write_log_sum(int64_t row, int32_t head, float maximum, float sum) const;
};

// Where each row's dense groups and spans begin; the spans of the longest one.
int32_t Attention::cut_spans() const {
  RowWork next{};
  int32_t longest = 0;
  for (int64_t row = 0; row < rows(); ++row) {
    const SequenceSpan& span = sequence(row);
    const int32_t kv_head = static_cast<int32_t>(row % args.pages.kv_heads);
    const RowTokens tokens = row_tokens(args, span, next.first_dense, kv_head, span.last_group());
    TESSERA_CHECK(tokens.high >= 0 && tokens.low >= 0, "attention: groups that no row holds");
    next.first_span = first_visible(args, span.context) / (kAttentionTile * kSpanTiles);
    next.spans = (tokens.tiles() - 1) / kSpanTiles + 1 - next.first_span;
    longest = std::max(longest, next.first_span + next.spans);
    work[row] = next;
    next.first_dense += kv_head == args.pages.kv_heads - 1 ? dense_groups(span) : 0;
  }
  return longest;
}

void Attention::plan() const {
  RowWork next{};
  int64_t all_spans = 0;
  for (int64_t row = 0; row < rows(); ++row) {
    all_spans += work[row].spans;
  }
  // A row that is a small part of what a thread has to do stays whole: nothing is then passed from
  // one thread to another, and memory is read in one run. It changes no bit.
  const int64_t whole = all_spans / (threads * kRowsOfAThread);
  for (int64_t row = 0; row < rows(); ++row) {
    RowWork& place = work[row];
    place.first_item = next.first_item;
    place.first_partial = next.first_partial;
    if (!shared->any(row) &&
        (sequence(row).count > 1 || place.spans == 1 || place.spans <= whole)) {
      place.spans = 0;
    }
    while (place.read < place.spans &&
           shared->tiles(row, place.first_span + place.read) == kSpanTiles) {
      ++place.read;
    }
    next.first_item += BlockCut(sequence(row), group).blocks() * place.items();
    next.first_partial += int64_t{place.spans} * group;
  }
  work[rows()] = next;
}

void Attention::run(int64_t item_index) const {
  const RowWork* place =
      std::upper_bound(work, work + rows(), item_index,
                       [](int64_t index, const RowWork& at) { return index < at.first_item; }) -
      1;
  const int64_t row = place - work;
  const SequenceSpan& span = sequence(row);
  const int32_t kv_head = static_cast<int32_t>(row % args.pages.kv_heads);
  const BlockCut cut(span, group);
  // Spans vary fastest, so that threads read neighbouring pages; of a prompt's blocks the last and
  // longest comes first, so that no thread begins it when the others are done.
  const int64_t local = item_index - place->first_item;
  const BlockCut::Block cut_block = cut.block(cut.blocks() - 1 - local / place->items());
  const RowTokens tokens = row_tokens(args, span, place->first_dense, kv_head, cut_block.group);
  const TileWalk walk(args.pages, shapes, tokens, span.tiers);
  const Item item{span, kv_head, cut_block, walk, weights_left(row, walk.tiles())};

  PairBlock block;  // 350 KiB, so nothing of it is written before it is needed
  block.head_dim = head_dim;
  block.pairs = cut_block.pairs;
  if (place->spans > 0) {
    attend_one_span(item, block, *place,
                    place->read + static_cast<int32_t>(local % place->items()));
  } else {
    attend_all_spans(item, block);
  }
}

// The pairs of all sequences of a run, over tiles that every one of them sees whole.
void Attention::run_shared(int64_t run_index) const {
  const SharedRun& run = shared->run(run_index);
  const SequenceSpan& first = args.sequences[static_cast<size_t>(shared->sequence(run, 0))];
  const RowTokens tokens = row_tokens(args, first, 0, run.kv_head, first.last_group());
  const TileWalk walk(args.pages, shapes, tokens, first.tiers);
  PairBlock block;
  block.head_dim = head_dim;
  block.pairs = run.sequences * group;
  load_shared(run, walk, block);
  clear(block);
  attend({first, run.kv_head, {first.last_group(), 0, block.pairs}, walk, nullptr}, block,
         run.first_tile, run.end_tile, run.end_tile - 1);
  for (int32_t pair = 0; pair < block.pairs; ++pair) {
    const int64_t row =
        int64_t{shared->sequence(run, pair / group)} * args.pages.kv_heads + run.kv_head;
    const int64_t index =
        work[row].first_partial + int64_t{run.first_tile / kSpanTiles} * group + pair % group;
    if (run.ends_span()) {
      kernels.finish(block, pair, partials->at(index));
    } else {
      partials->save(block, pair, index);
    }
  }
}

// Runs are begun before any item, so each is done or in some thread's hands.
void Attention::await_runs() const {
  while (runs_left->load(std::memory_order_acquire) > 0) {
    std::this_thread::yield();
  }
}

void Attention::load_shared(const SharedRun& run, const TileWalk& walk, PairBlock& block) const {
  KvTile tile;
  walk.find(run.first_tile, 0, kAttentionTile, tile);
  fetch_tile(tile);
  for (int32_t pair = 0; pair < block.pairs; ++pair) {
    block.first_seen[pair] = 0;
    block.end_seen[pair] = run.end_tile * kAttentionTile;
    const SequenceSpan& span =
        args.sequences[static_cast<size_t>(shared->sequence(run, pair / group))];
    const int32_t head = run.kv_head * group + pair % group;
    const float* query = args.queries.row(span.first_row).data() + int64_t{head} * head_dim;
    const KvFormat format = tile.shape->layout.format;
    (format.is_sparse()  ? kernels.load_query_tokens
     : format.is_codes() ? kernels.load_query_codes
                         : kernels.load_query)(block, pair, query, args.scale * kLog2E);
  }
}

void Attention::load(const Item& item, PairBlock& block, int32_t first_tile,
                     int32_t end_tile) const {
  for (int32_t pair = 0; pair < block.pairs; ++pair) {
    block.end_seen[pair] = position(item, pair) + 1;
    block.first_seen[pair] = first_visible(args, position(item, pair));
  }
  KvTile tile;
  const TileRange range = range_of(item, block, first_tile);
  item.walk.find(first_tile, range.begin, range.end, tile);
  fetch_tile(tile);  // while the queries are prepared
  const bool floats = item.walk.any_floats(end_tile);
  const bool codes = item.walk.any_codes(first_tile, end_tile);
  const bool sparse = item.walk.any_sparse(first_tile, end_tile);
  for (int32_t pair = 0; pair < block.pairs; ++pair) {
    const int64_t row = item.sequence.first_row + row_of(item, pair);
    const int32_t head = item.kv_head * group + head_in_group(item, pair);
    const float* query = args.queries.row(row).data() + int64_t{head} * head_dim;
    if (floats) {
      kernels.load_query(block, pair, query, args.scale * kLog2E);
    }
    if (codes) {
      kernels.load_query_codes(block, pair, query, args.scale * kLog2E);
    }
    if (sparse) {
      kernels.load_query_tokens(block, pair, query, args.scale * kLog2E);
    }
  }
}

// Of closed tokens a pair sees all but what a window has passed (places are positions then), of the
// dense group what is not later than itself, and what the window holds of the group before and is
// to be read dense.
TileRange Attention::range_of(const Item& item, const PairBlock& block, int32_t tile) const {
  const int32_t last = block.pairs - 1;
  if (item.walk.is_dense(tile)) {
    const int32_t first = item.block.group * kKvGroup;
    const int32_t end = item.sequence.older_dense() > 0 ? kKvGroup : block.end_seen[last] - first;
    return {first, std::max(block.first_seen[0] - first, 0), end, false};
  }
  const int32_t first = tile * kAttentionTile;
  const int32_t end = item.walk.tokens(tile);
  return {first, std::max(block.first_seen[0] - first, 0), end,
          end == kAttentionTile && block.first_seen[last] <= first};
}

void Attention::see(const Item& item, PairBlock& block, int32_t tile,
                    const TileRange& range) const {
  if (range.whole) {
    std::fill_n(block.visible, block.pairs, ~uint64_t{0});
    return;
  }
  const bool dense = item.walk.is_dense(tile);
  const uint64_t older = dense ? bits_between(kKvGroup - item.sequence.older_dense(), kKvGroup) : 0;
  for (int32_t pair = 0; pair < block.pairs; ++pair) {
    const int32_t end = dense ? block.end_seen[pair] - range.first : range.end;
    block.visible[pair] = older | bits_between(block.first_seen[pair] - range.first, end);
  }
}

// As a span begins.
void Attention::clear(PairBlock& block) const {
  std::fill_n(block.maxima, PairBlock::kPairs, PairBlock::kLowest);
  std::fill_n(block.sums, block.pairs * KvPageLayout::kKeyTile, 0.0f);
  std::fill_n(block.zeros, block.pairs * KvPageLayout::kKeyTile, 0.0f);
  std::fill_n(block.values, int64_t{block.pairs} * head_dim, 0.0f);
}

// Continues the online softmax of the item's pairs over tiles [first_tile, end_tile) of one span.
// The item ends with `last_tile`.
void Attention::attend(const Item& item, PairBlock& block, int32_t first_tile, int32_t end_tile,
                       int32_t last_tile) const {
  KvTile tiles[2];
  TileRange range = range_of(item, block, first_tile);
  item.walk.find(first_tile, range.begin, range.end, tiles[first_tile % 2]);
  kernels.begin_tiles(block);
  for (int32_t tile = first_tile; tile < end_tile; ++tile) {
    const TileRange current = range;
    KvTile* next = nullptr;
    if (tile < last_tile) {
      next = &tiles[(tile + 1) % 2];
      range = range_of(item, block, tile + 1);
      item.walk.find(tile + 1, range.begin, range.end, *next);
    }
    see(item, block, tile, current);
    float* left = item.left == nullptr ? nullptr : item.left + tile * kv_weight_tile_floats(group);
    kernels.add_tile(block,
                     {tiles[tile % 2], next, current.begin, current.end, current.whole, left});
  }
  kernels.end_tiles(block);
}

void Attention::write_log_sum(int64_t row, int32_t head, float maximum, float sum) const {
  if (args.log_sums.data != nullptr) {
    args.log_sums.row(row)[static_cast<size_t>(head)] = maximum * kLn2 + std::log(sum);
  }
}

void Attention::attend_all_spans(const Item& item, PairBlock& block) const {
  const int32_t tiles = item.walk.tiles();
  const int32_t position = item.sequence.context + static_cast<int32_t>(row_of(item, 0));
  const int32_t first_tile = first_visible(args, position) / kAttentionTile;
  load(item, block, first_tile, tiles);
  float maxima[PairBlock::kPairs];
  float sums[PairBlock::kPairs] = {};
  std::fill_n(maxima, PairBlock::kPairs, PairBlock::kLowest);
  const auto head_of = [&](int32_t pair) {
    return item.kv_head * group + head_in_group(item, pair);
  };
  const auto out_of = [&](int32_t pair) {
    return out(item.sequence, row_of(item, pair), head_of(pair));
  };
  for (int32_t pair = 0; pair < block.pairs; ++pair) {
    std::fill_n(out_of(pair), head_dim, 0.0f);
  }
  for (int32_t tile = first_tile; tile < tiles;) {
    const int32_t span_end = std::min(tiles, (tile / kSpanTiles + 1) * kSpanTiles);
    clear(block);
    attend(item, block, tile, span_end, tiles - 1);
    for (int32_t pair = 0; pair < block.pairs; ++pair) {
      float maximum;
      float sum;
      const Partial span{&maximum, &sum, block.values + int64_t{pair} * head_dim};
      kernels.finish(block, pair, span);
      kernels.merge({&maxima[pair], &sums[pair], out_of(pair)}, span, head_dim);
    }
    tile = span_end;
  }
  for (int32_t pair = 0; pair < block.pairs; ++pair) {
    kernels.normalise(out_of(pair), sums[pair], head_dim);
    write_log_sum(item.sequence.first_row + row_of(item, pair), head_of(pair), maxima[pair],
                  sums[pair]);
  }
}

void Attention::attend_one_span(const Item& item, PairBlock& block, const RowWork& place,
                                int32_t span) const {
  const int32_t span_begin = (place.first_span + span) * kSpanTiles;
  const int32_t first_seen = first_visible(args, item.sequence.context) / kAttentionTile;
  const int32_t done = shared->tiles(&place - work, place.first_span + span);
  const int32_t first_tile = std::max(span_begin, first_seen) + done;
  const int32_t end_tile = std::min(span_begin + kSpanTiles, item.walk.tiles());
  if (first_tile == end_tile) {
    return;
  }
  load(item, block, first_tile, end_tile);
  clear(block);
  const int64_t first_partial = place.first_partial + int64_t{span} * group;
  if (done > 0) {
    await_runs();
  }
  for (int32_t pair = 0; pair < block.pairs && done > 0; ++pair) {
    partials->restore(block, pair, first_partial + head_in_group(item, pair));
  }
  attend(item, block, first_tile, end_tile, end_tile - 1);
  for (int32_t pair = 0; pair < block.pairs; ++pair) {
    kernels.finish(block, pair, partials->at(first_partial + head_in_group(item, pair)));
  }
}

// Of the one query row of a sequence that was split.
void Attention::merge_spans(int64_t row, int32_t head_in_group) const {
  const RowWork& place = work[row];
  if (place.spans == 0) {
    return;
  }
  const int32_t head = static_cast<int32_t>(row % args.pages.kv_heads) * group + head_in_group;
  float maximum = PairBlock::kLowest;
  float sum = 0;
  float* values = out(sequence(row), 0, head);
  std::fill_n(values, head_dim, 0.0f);
  for (int32_t span = 0; span < place.spans; ++span) {
    const int64_t index = place.first_partial + int64_t{span} * group + head_in_group;
    kernels.merge({&maximum, &sum, values}, partials->at(index), head_dim);
  }
  kernels.normalise(values, sum, head_dim);
  write_log_sum(sequence(row).first_row, head, maximum, sum);
}

void run_attention(const AttentionKernels& kernels, const AttentionArgs& args, Stream stream) {
  check_attention(args);
  TESSERA_CHECK(args.pages.head_dim % kHeadDimMultiple == 0,
                "attention: head_dim is a multiple of 8, or else the scalar backend serves it");
  const int64_t rows = std::ssize(args.sequences) * args.pages.kv_heads;
  const int64_t offset = work_bytes(rows);
  const int64_t scratch_bytes = static_cast<int64_t>(args.scratch.size());
  TESSERA_CHECK(offset <= scratch_bytes, "attention: scratch is too small");
  TESSERA_CHECK(reinterpret_cast<uintptr_t>(args.scratch.data()) % alignof(RowWork) == 0,
                "attention: scratch is not aligned");
  const int32_t head_dim = args.pages.head_dim;
  ThreadPool& pool = ThreadPool::of(stream);
  const TileShapes shapes(args);
  Attention attention{.args = args,
                      .kernels = kernels,
                      .shapes = shapes,
                      .threads = pool.threads(),
                      .head_dim = head_dim,
                      .group = args.query_heads / args.pages.kv_heads,
                      .work = reinterpret_cast<RowWork*>(args.scratch.data()),
                      .shared = nullptr,
                      .runs_left = nullptr,
                      .partials = nullptr};
  const int32_t spans = attention.cut_spans();
  const int64_t runs_bytes =
      SharedRuns::scratch_bytes(std::ssize(args.sequences), args.pages.kv_heads, spans);
  TESSERA_CHECK(offset + runs_bytes <= scratch_bytes, "attention: scratch is too small");
  const SharedRuns shared(args, spans, pool.threads(), args.scratch.data() + offset);
  std::atomic<int64_t> runs_left = shared.count();
  attention.shared = &shared;
  attention.runs_left = &runs_left;
  const Partials partials(args.scratch.data() + offset + runs_bytes, head_dim);
  attention.partials = &partials;
  attention.plan();
  TESSERA_CHECK(
      offset + runs_bytes + Partials::bytes(attention.partial_count(), head_dim) <= scratch_bytes,
      "attention: scratch is too small");
  pool.parallel_for(shared.count() + attention.items(), 1, [&](int64_t index, int64_t, int) {
    if (index < shared.count()) {
      attention.run_shared(index);
      runs_left.fetch_sub(1, std::memory_order_release);
    } else {
      attention.run(index - shared.count());
    }
  });
  if (attention.partial_count() > 0) {
    const int64_t group = attention.group;
    pool.parallel_for(rows * group, args.query_heads, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        attention.merge_spans(i / group, static_cast<int32_t>(i % group));
      }
    });
  }
}

}  // namespace

namespace avx2 {
// Rows are counted as if each query head had its own.
int64_t attention_scratch_bytes(const StepLimits& limits, int32_t query_heads, int32_t head_dim) {
  const int64_t sequences = std::min(limits.sequences, limits.tokens);
  const int64_t rows = sequences * query_heads;
  const int64_t spans = most_spans(limits.context);
  return work_bytes(rows) + SharedRuns::scratch_bytes(sequences, query_heads, spans) +
         Partials::bytes(rows * spans, head_dim);
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
