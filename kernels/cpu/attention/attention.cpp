#include <algorithm>
#include <span>

#include "kernels/check.h"
#include "kernels/cpu/attention/ops.h"
#include "kernels/cpu/attention/pair_block.h"
#include "kernels/cpu/thread_pool.h"

namespace tessera {
namespace {

constexpr float kLog2E = 1.44269504088896341f;
constexpr int32_t kKeyTile = KvPageLayout::kKeyTile;

// A partial in scratch: maximum, sum, padding to kPartialHeader floats, values.
constexpr int64_t kPartialHeader = 16;

int64_t partial_floats(int32_t head_dim) {
  return kPartialHeader + round_up(head_dim, kPartialHeader);
}

// Where a sequence's items and partials begin among those of the step. Decode has few rows and much
// context, so it is split over the spans of its context; a prompt has rows enough.
struct SequenceWork {
  int64_t first_item;
  int64_t first_partial;
  int32_t first_span;
  int32_t spans;  // 0: not split
};

int64_t work_bytes(int64_t sequences) {
  return round_up((sequences + 1) * int64_t{sizeof(SequenceWork)}, 64);
}

// Pairs [first_pair, first_pair + pairs) of one sequence and KV head; pair i is row i / group and
// head i % group of the group. Positions ascend with it.
struct Item {
  const SequenceSpan& sequence;
  int32_t kv_head;
  int64_t first_pair;
  int32_t pairs;
};

struct Attention {
  const AttentionArgs& args;
  const AttentionKernels& kernels;
  const int32_t head_dim;
  const int32_t group;
  SequenceWork* const work;  // [sequences + 1]
  float* const partials;     // [partials, partial_floats(head_dim)]

  int64_t sequences() const { return static_cast<int64_t>(args.sequences.size()); }
  const SequenceSpan& sequence(int64_t index) const {
    return args.sequences[static_cast<size_t>(index)];
  }
  int64_t items() const { return work[sequences()].first_item; }
  int64_t partial_count() const { return work[sequences()].first_partial; }

  int32_t position(const Item& item, int32_t pair) const {
    return item.sequence.context + static_cast<int32_t>((item.first_pair + pair) / group);
  }
  int32_t query_head(const Item& item, int32_t pair) const {
    return item.kv_head * group + static_cast<int32_t>((item.first_pair + pair) % group);
  }
  int32_t first_visible(int32_t at) const {
    return args.window > 0 ? std::max(0, at + 1 - args.window) : 0;
  }
  float* out(const SequenceSpan& span, int64_t row, int32_t head) const {
    return args.out.row(span.first_row + row).data() + int64_t{head} * head_dim;
  }
  Partial partial(int64_t index) const {
    float* floats = partials + index * partial_floats(head_dim);
    return {floats, floats + 1, floats + kPartialHeader};
  }

  void plan() const;
  void run(int64_t item_index) const;
  void load(const Item& item, PairBlock& block) const;
  KvTile tile_at(const int32_t* page_ids, int32_t first, int32_t begin, int32_t end) const;
  void attend(const Item& item, PairBlock& block, int32_t begin, int32_t end) const;
  void attend_all_spans(const Item& item, PairBlock& block) const;
  void attend_one_span(const Item& item, PairBlock& block, const SequenceWork& place,
                       int32_t span) const;
  void merge_spans(int64_t sequence_index, int32_t head) const;
};

void Attention::plan() const {
  SequenceWork next{};
  for (int64_t i = 0; i < sequences(); ++i) {
    const SequenceSpan& span = sequence(i);
    next.first_span = first_visible(span.context) / kAttentionSpan;
    const int32_t spans = span.context / kAttentionSpan + 1 - next.first_span;
    next.spans = span.count == 1 && spans > 1 ? spans : 0;
    work[i] = next;
    const int64_t blocks = div_ceil(int64_t{span.count} * group, PairBlock::kPairs);
    next.first_item += args.pages.kv_heads * blocks * std::max(next.spans, 1);
    next.first_partial += int64_t{next.spans} * args.query_heads;
  }
  work[sequences()] = next;
}

void Attention::run(int64_t item_index) const {
  const SequenceWork* place = std::upper_bound(work, work + sequences(), item_index,
                                               [](int64_t index, const SequenceWork& at) {
                                                 return index < at.first_item;
                                               }) -
                              1;
  const SequenceSpan& span = sequence(place - work);
  const int64_t pairs = int64_t{span.count} * group;
  const int64_t blocks = div_ceil(pairs, PairBlock::kPairs);
  const int32_t spans = std::max(place->spans, 1);
  // Spans vary fastest, so that threads read neighbouring pages; of a prompt's blocks the last and
  // longest comes first, so that no thread begins it when the others are done.
  const int64_t local = item_index - place->first_item;
  const int64_t block_index = blocks - 1 - local / spans % blocks;
  const int64_t first_pair = block_index * PairBlock::kPairs;
  const Item item{span, static_cast<int32_t>(local / spans / blocks), first_pair,
                  static_cast<int32_t>(std::min<int64_t>(PairBlock::kPairs, pairs - first_pair))};

  PairBlock block;  // 100 KiB and more, so nothing of it is written before it is needed
  load(item, block);
  if (place->spans > 0) {
    attend_one_span(item, block, *place, static_cast<int32_t>(local % spans));
  } else {
    attend_all_spans(item, block);
  }
}

void Attention::load(const Item& item, PairBlock& block) const {
  block.format = args.pages.layout.format;
  block.head_dim = head_dim;
  block.pairs = item.pairs;
  constexpr int32_t kStep = PairBlock::kStep;
  for (int32_t pair = 0; pair < item.pairs; ++pair) {
    block.end_seen[pair] = position(item, pair) + 1;
    block.first_seen[pair] = first_visible(position(item, pair));
    const int64_t row = item.sequence.first_row + (item.first_pair + pair) / group;
    const float* query = args.queries.row(row).data() + int64_t{query_head(item, pair)} * head_dim;
    float* packed = block.queries + int64_t{pair / kStep} * kStep * head_dim + pair % kStep;
    for (int32_t channel = 0; channel < head_dim; ++channel) {
      packed[int64_t{channel} * kStep] = query[channel] * (args.scale * kLog2E);
    }
  }
}

// The tile of tokens [first, first + kAttentionTile). Only the key tiles that hold some of [begin,
// end) need have pages; the others repeat one that has, and no weight falls on them.
KvTile Attention::tile_at(const int32_t* page_ids, int32_t first, int32_t begin,
                          int32_t end) const {
  const KvPageLayout& layout = args.pages.layout;
  KvTile tile{};
  int32_t present = 0;
  for (int32_t i = 0; i < kKeyTilesInTile; ++i) {
    const int32_t token = first + i * kKeyTile;
    if (token + kKeyTile > begin && token < end) {
      const int32_t page_id = page_ids[token / layout.capacity];
      TESSERA_CHECK(page_id >= 0, "attention: the row has no page for a token");
      const std::byte* page = args.pages.page(page_id);
      tile.keys[i] = page + layout.key_offset(token % layout.capacity, 0);
      tile.values[i] = page + layout.value_offset(token % layout.capacity);
      present = i;
    }
  }
  for (int32_t i = 0; i < kKeyTilesInTile; ++i) {
    if (tile.keys[i] == nullptr) {
      tile.keys[i] = tile.keys[present];
      tile.values[i] = tile.values[present];
    }
  }
  return tile;
}

uint64_t bits_between(int32_t begin, int32_t end) {
  const int32_t first = std::clamp(begin, 0, kAttentionTile);
  const int32_t last = std::clamp(end, 0, kAttentionTile);
  return first < last ? ~uint64_t{0} >> (kAttentionTile - (last - first)) << first : 0;
}

// The online softmax of the item's pairs over tokens [begin, end) of one span.
void Attention::attend(const Item& item, PairBlock& block, int32_t begin, int32_t end) const {
  std::fill_n(block.maxima, PairBlock::kPairs, PairBlock::kLowest);
  std::fill_n(block.sums, item.pairs * kKeyTile, 0.0f);
  std::fill_n(block.values, int64_t{item.pairs} * head_dim, 0.0f);
  const int32_t* page_ids = args.pages.row(item.sequence.slot, args.layer, item.kv_head);
  int32_t first = begin / kAttentionTile * kAttentionTile;
  KvTile next = tile_at(page_ids, first, begin, end);
  for (; first < end; first += kAttentionTile) {
    const KvTile tile = next;
    const bool last = first + kAttentionTile >= end;
    if (!last) {
      next = tile_at(page_ids, first + kAttentionTile, begin, end);
    }
    for (int32_t pair = 0; pair < item.pairs; ++pair) {
      block.visible[pair] =
          bits_between(block.first_seen[pair] - first, block.end_seen[pair] - first);
    }
    kernels.add_tile(block, {.tile = tile,
                             .next = last ? nullptr : &next,
                             .begin = std::max(begin - first, 0),
                             .end = std::min(end - first, kAttentionTile)});
  }
}

void Attention::attend_all_spans(const Item& item, PairBlock& block) const {
  float maxima[PairBlock::kPairs];
  float sums[PairBlock::kPairs] = {};
  std::fill_n(maxima, PairBlock::kPairs, PairBlock::kLowest);
  const auto out_of = [&](int32_t pair) {
    return out(item.sequence, (item.first_pair + pair) / group, query_head(item, pair));
  };
  for (int32_t pair = 0; pair < item.pairs; ++pair) {
    std::fill_n(out_of(pair), head_dim, 0.0f);
  }
  const int32_t end = block.end_seen[item.pairs - 1];
  for (int32_t begin = block.first_seen[0]; begin < end;) {
    const int32_t span_end = std::min(end, (begin / kAttentionSpan + 1) * kAttentionSpan);
    attend(item, block, begin, span_end);
    for (int32_t pair = 0; pair < item.pairs; ++pair) {
      float sum = kernels.sum_of_weights(block, pair);
      float* values = block.values + int64_t{pair} * head_dim;
      kernels.merge({&maxima[pair], &sums[pair], out_of(pair)}, {&block.maxima[pair], &sum, values},
                    head_dim);
    }
    begin = span_end;
  }
  for (int32_t pair = 0; pair < item.pairs; ++pair) {
    kernels.normalise(out_of(pair), sums[pair], head_dim);
  }
}

void Attention::attend_one_span(const Item& item, PairBlock& block, const SequenceWork& place,
                                int32_t span) const {
  const int32_t at = item.sequence.context;
  const int32_t span_begin = (place.first_span + span) * kAttentionSpan;
  attend(item, block, std::max(span_begin, first_visible(at)),
         std::min(span_begin + kAttentionSpan, at + 1));
  for (int32_t pair = 0; pair < item.pairs; ++pair) {
    const int64_t first = place.first_partial + int64_t{span} * args.query_heads;
    const Partial into = partial(first + query_head(item, pair));
    *into.maximum = block.maxima[pair];
    *into.sum = kernels.sum_of_weights(block, pair);
    std::copy_n(block.values + int64_t{pair} * head_dim, head_dim, into.values);
  }
}

void Attention::merge_spans(int64_t sequence_index, int32_t head) const {
  const SequenceWork& place = work[sequence_index];
  if (place.spans == 0) {
    return;
  }
  float maximum = PairBlock::kLowest;
  float sum = 0;
  float* values = out(sequence(sequence_index), 0, head);
  std::fill_n(values, head_dim, 0.0f);
  for (int32_t span = 0; span < place.spans; ++span) {
    const int64_t index = place.first_partial + int64_t{span} * args.query_heads + head;
    kernels.merge({&maximum, &sum, values}, partial(index), head_dim);
  }
  kernels.normalise(values, sum, head_dim);
}

void check(const AttentionArgs& args) {
  const KvPagesView& pages = args.pages;
  check_layout(pages.layout);
  TESSERA_CHECK(pages.layout.head_dim % kHeadDimMultiple == 0,
                "attention: head_dim is a multiple of 8, or else the scalar backend serves it");
  TESSERA_CHECK(args.query_heads > 0 && args.query_heads % pages.kv_heads == 0,
                "attention: query heads are a multiple of KV heads");
  TESSERA_CHECK(args.queries.cols == int64_t{args.query_heads} * pages.layout.head_dim &&
                    args.out.cols == args.queries.cols && args.out.rows == args.queries.rows,
                "attention: shapes of queries and out");
  for (const SequenceSpan& span : args.sequences) {
    TESSERA_CHECK(
        span.count > 0 && span.first_row >= 0 && span.first_row + span.count <= args.queries.rows,
        "attention: a sequence's rows");
    TESSERA_CHECK(span.context >= 0 && int64_t{span.context} + span.count <=
                                           int64_t{pages.row_pages} * pages.layout.capacity,
                  "attention: more tokens than a row of pages holds");
  }
}

void run_attention(const AttentionKernels& kernels, const AttentionArgs& args, Stream stream) {
  check(args);
  const int64_t offset = work_bytes(static_cast<int64_t>(args.sequences.size()));
  const int64_t scratch_bytes = static_cast<int64_t>(args.scratch.size());
  TESSERA_CHECK(offset <= scratch_bytes, "attention: scratch is too small");
  TESSERA_CHECK(reinterpret_cast<uintptr_t>(args.scratch.data()) % alignof(SequenceWork) == 0,
                "attention: scratch is not aligned");
  const int32_t head_dim = args.pages.layout.head_dim;
  const Attention attention{.args = args,
                            .kernels = kernels,
                            .head_dim = head_dim,
                            .group = args.query_heads / args.pages.kv_heads,
                            .work = reinterpret_cast<SequenceWork*>(args.scratch.data()),
                            .partials = reinterpret_cast<float*>(args.scratch.data() + offset)};
  attention.plan();
  const int64_t partial_bytes = partial_floats(head_dim) * int64_t{sizeof(float)};
  TESSERA_CHECK(offset + attention.partial_count() * partial_bytes <= scratch_bytes,
                "attention: scratch is too small");
  ThreadPool& pool = ThreadPool::of(stream);
  pool.parallel_for(attention.items(), 1, [&](int64_t item, int64_t, int) { attention.run(item); });
  if (attention.partial_count() > 0) {
    const int64_t merges = attention.sequences() * args.query_heads;
    pool.parallel_for(merges, args.query_heads, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        attention.merge_spans(i / args.query_heads, static_cast<int32_t>(i % args.query_heads));
      }
    });
  }
}

int64_t scratch_bytes_for(const StepLimits& limits, int32_t query_heads, int32_t head_dim) {
  const int64_t sequences = std::min(limits.sequences, limits.tokens);
  const int64_t spans = div_ceil(limits.context, kAttentionSpan);
  const int64_t partials = spans > 1 ? sequences * spans * query_heads : 0;
  return work_bytes(sequences) + partials * partial_floats(head_dim) * int64_t{sizeof(float)};
}

}  // namespace

namespace avx2 {
int64_t attention_scratch_bytes(const StepLimits& limits, int32_t query_heads, int32_t head_dim) {
  return scratch_bytes_for(limits, query_heads, head_dim);
}
void attention(const AttentionArgs& args, Stream stream) {
  run_attention(kAttentionKernels, args, stream);
}
}  // namespace avx2

namespace avx512 {
int64_t attention_scratch_bytes(const StepLimits& limits, int32_t query_heads, int32_t head_dim) {
  return scratch_bytes_for(limits, query_heads, head_dim);
}
void attention(const AttentionArgs& args, Stream stream) {
  run_attention(kAttentionKernels, args, stream);
}
}  // namespace avx512

}  // namespace tessera
