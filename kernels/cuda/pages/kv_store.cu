#include "base/check.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/pages/rope.h"
#include "kernels/cuda/pages/tile_writer.h"

namespace tessera::cuda {
namespace {

using namespace simt;

constexpr int32_t kTile = kTileTokens;
constexpr int32_t kGroupTiles = kKvGroup / kTile;

constexpr int32_t closed_tokens(const SequenceSpan& span) {
  return (span.closed_after() - span.closed_before()) * kKvGroup;
}

// Stores one group of one row, by one block.
class GroupStore {
 public:
  TESSERA_DEVICE GroupStore(const KvStoreArgs& args, const int32_t* positions,
                            const SequenceSpan& span, int32_t head, int64_t first_dense)
      : args_(args),
        positions_(positions),
        pages_(args.pages),
        span_(span),
        residual_(as_kind<FormatKind::floats>(args.pages.residual_layout)),
        head_(head),
        row_(args.pages.row_index(span.slot, args.layer, head)),
        first_dense_(first_dense) {}

  TESSERA_DEVICE void run(int32_t group) const {
    std::byte* dense = pages_.residual(row_);
    if (group < span_.last_group()) {
      const int64_t index = first_dense_ + group - span_.closed_before();
      dense = args_.dense.data() +
              (index * pages_.kv_heads + head_) * pages_.residual_layout.page_bytes;
      if (group == span_.closed_before() && span_.context % kKvGroup != 0) {
        copy_bytes(pages_.residual(row_), dense, pages_.residual_layout.page_bytes, block_team());
      }
    }
    sync_block();
    put(begin_of(group), group, dense);
    sync_block();
    if (group < span_.closed_after()) {
      close(group, dense);
    }
    sync_block();
  }
  // Adds the closed tokens to the row's count. Requires: all groups of the row are stored.
  TESSERA_DEVICE void count() const { pages_.rows[row_].high += closed_tokens(span_); }

 private:
  // Returns: position of the first token of the span that is written with `group`. A residual
  // buffer that keeps the newest kKvGroup tokens, each at its place in its group, also receives
  // those of the previous group.
  TESSERA_DEVICE int32_t begin_of(int32_t group) const {
    const bool keeps_newest = span_.newest > 0 && group == span_.last_group();
    const int32_t first = keeps_newest ? span_.context + span_.count - kKvGroup : group * kKvGroup;
    return span_.context > first ? span_.context : first;
  }

  // Writes the span's tokens from `begin` to the end of the group to a page of the residual layout.
  TESSERA_DEVICE void put(int32_t begin, int32_t group, std::byte* dense) const {
    const int32_t first = group * kKvGroup;
    const int32_t span_end = span_.context + span_.count;
    const int32_t end = span_end < first + kKvGroup ? span_end : first + kKvGroup;
    const int32_t count = (end - begin) * pages_.head_dim;
    TESSERA_UNROLL_BY(1)
    for (int32_t i = thread(); i < count; i += kTileThreads) {
      const int32_t position = begin + i / pages_.head_dim;
      const int32_t channel = i % pages_.head_dim;
      const int64_t from = span_.first_row + position - span_.context;
      const int64_t column = int64_t{head_} * pages_.head_dim + channel;
      const int32_t tile = position % kKvGroup / kTile;
      const int32_t lane = position % kTile;
      put_float(key(from, channel),
                dense + residual_.keys_offset(tile) + residual_.key_offset(lane, channel));
      put_float(args_.values.data[from * args_.values.stride + column],
                dense + residual_.values_offset(tile) + residual_.value_offset(lane, channel));
    }
  }
  // Returns: a channel of the key of a batch row, in the frame.
  TESSERA_DEVICE float key(int64_t row, int32_t channel) const {
    const float turned = rotated_key(row, channel);
    if (args_.frame.empty()) {
      return turned;
    }
    const int32_t column = head_ * pages_.head_dim + channel;
    return (turned - args_.frame.centre.data()[column]) * args_.frame.scale.data()[column];
  }
  // The same after the rotation alone.
  TESSERA_DEVICE float rotated_key(int64_t row, int32_t channel) const {
    const float* head = args_.keys.data + row * args_.keys.stride + head_ * pages_.head_dim;
    const StepRope& by = args_.rope;
    if (channel >= by.rotary_dim) {
      return head[channel];
    }
    const int32_t half = by.rotary_dim / 2;
    const bool is_first = channel < half;
    const int32_t i = is_first ? channel : channel - half;
    const int64_t angle = int64_t{positions_[row]} * half + i;
    const HeadPair pair =
        rotated({head[i], head[i + half]}, by.key_table.cos[angle], by.key_table.sin[angle]);
    return is_first ? pair.first : pair.second;
  }
  TESSERA_DEVICE void put_float(float x, std::byte* to) const {
    if (residual_.format.key_bits == 16) {
      *reinterpret_cast<f16*>(to) = to_stored_f16(x);
    } else {
      *reinterpret_cast<float*>(to) = x;
    }
  }

  // Returns: token `index` of a full dense group.
  TESSERA_DEVICE StoredToken token(std::byte* dense, int32_t index) const {
    return {residual_, token_place(dense, index)};
  }

  // Encodes a full dense group after the row's high tokens.
  TESSERA_DEVICE void close(int32_t group, std::byte* dense) const {
    const KvPageLayout& layout = pages_.layouts[span_.tiers.high];
    const int32_t stored = pages_.rows[row_].high + (group - span_.closed_before()) * kKvGroup;
    if (layout.format.is_sparse()) {
      close_sparse(as_kind<FormatKind::sparse>(layout), stored, dense);
    } else if (layout.format.key_bits <= 8) {
      close_codes(as_kind<FormatKind::codes>(layout), stored, dense);
    } else {
      close_floats(as_kind<FormatKind::floats>(layout), stored, dense);
    }
  }

  TESSERA_DEVICE void close_floats(const KvPageLayout& layout, int32_t stored,
                                   std::byte* dense) const {
    if (stored % kTile != 0) {
      TESSERA_UNROLL_BY(1)
      for (int32_t i = 0; i < kKvGroup; ++i) {
        put_floats(layout, place(layout, stored + i), token(dense, i), block_team());
      }
      return;
    }
    TESSERA_UNROLL_BY(1)
    for (int32_t tile = 0; tile < kGroupTiles; ++tile) {
      const TokenPlace to = place(layout, stored + tile * kTile);
      copy_bytes(dense + residual_.keys_offset(tile), to.page + layout.keys_offset(to.tile),
                 layout.key_tile_bytes(), block_team());
      copy_bytes(dense + residual_.values_offset(tile), to.page + layout.values_offset(to.tile),
                 layout.value_tile_bytes(), block_team());
    }
  }

  TESSERA_DEVICE void close_codes(const KvPageLayout& layout, int32_t stored,
                                  std::byte* dense) const {
    TileMemory& memory = shared<TileMemory>();
    TESSERA_UNROLL_BY(1)
    for (int32_t tile = 0; tile < kGroupTiles; ++tile) {
      const int32_t first = stored + tile * kTile;
      decode_tile(dense, tile, memory);
      find_own_ranges(layout, memory);
      sync_block();
      if (stored % kTile == 0) {
        put_code_tile(layout, place(layout, first), memory);
      } else {
        put_code_tokens(layout, first, memory);
      }
      sync_block();
    }
  }
  // Used if a policy left a number of tokens that is not whole tiles. Writes token after token,
  // because neighbours share bytes. A thread has the same channels of every token, so no byte is
  // written by two.
  TESSERA_DEVICE void put_code_tokens(const KvPageLayout& layout, int32_t first,
                                      const TileMemory& memory) const {
    TESSERA_UNROLL_BY(1)
    for (int32_t i = 0; i < kTile; ++i) {
      const TokenPlace to = place(layout, first + i);
      if (to.lane == 0) {  // the first token of a tile clears the rest of it
        clear_tile(layout, to, block_team());
        sync_block();
      }
      put_codes(layout, to, memory.tokens[i], memory.ranges[i], block_team());
    }
  }

  // Works after any number of stored tokens, because sparse tokens share no bytes.
  TESSERA_DEVICE void close_sparse(const KvPageLayout& layout, int32_t stored,
                                   std::byte* dense) const {
    TileMemory& memory = shared<TileMemory>();
    TESSERA_UNROLL_BY(1)
    for (int32_t tile = 0; tile < kGroupTiles; ++tile) {
      decode_tile(dense, tile, memory);
      each_own_token([&](int32_t i) {
        put_sparse(layout, place(layout, stored + tile * kTile + i), memory.tokens[i], nullptr,
                   memory.sparse[warp()]);
      });
      sync_warp();
    }
  }

  // Decodes the warp's own tokens of a full dense group's tile.
  TESSERA_DEVICE void decode_tile(std::byte* dense, int32_t tile, TileMemory& memory) const {
    each_own_token([&](int32_t i) {
      decode(token(dense, tile * kTile + i), pages_.head_dim, memory.tokens[i]);
    });
    sync_warp();
  }

  TESSERA_DEVICE TokenPlace place(const KvPageLayout& layout, int32_t token) const {
    const int32_t entry = token / layout.capacity;
    simt::check(entry < pages_.row_pages);
    const int32_t page_id = pages_.table(row_)[entry];
    simt::check(page_id >= 0);
    return token_place(pages_.page(page_id), token % layout.capacity);
  }

  const KvStoreArgs& args_;
  const int32_t* positions_;
  const KvPagesView& pages_;
  const SequenceSpan& span_;
  const KvPageLayout residual_;
  int32_t head_;
  int64_t row_;
  int64_t first_dense_;
};

// Rotates the query heads of one KV head of a token, and brings them into the frame. `block`: place
// in x among the blocks that do so. Neighbours in y have consecutive tokens, so that prompts launch
// no empty blocks.
TESSERA_DEVICE void turn_queries(const KvStoreArgs& args, const int32_t* positions, int32_t block) {
  const StepRope& by = args.rope;
  const MatrixView<float>& queries = by.rotary_dim > 0 ? by.queries : args.frame.queries;
  const int64_t row = int64_t{block / args.pages.kv_heads} * grid_y() + block_y();
  if (row >= queries.rows) {
    return;
  }
  const int64_t cols = queries.cols / args.pages.kv_heads;
  const int32_t head = block % args.pages.kv_heads;
  const int32_t half = by.rotary_dim / 2;
  const int64_t angles = half > 0 ? int64_t{positions[row]} * half : 0;
  rotate_heads(queries.data + row * queries.stride + head * cols,
               static_cast<int32_t>(cols / args.pages.head_dim), args.pages.head_dim,
               {by.query_table.cos + angles, by.query_table.sin + angles, half},
               args.frame.empty() ? nullptr : args.frame.scale.data() + head * args.pages.head_dim);
}

// One block for each group of a row but the last. The first block also stores the last group, after
// its own: the last group writes the residual buffer, which the first group may have to read. If
// the row's tokens are not whole tiles, neighbouring groups share one, whose first token clears it.
// Then the first block stores all groups of the row, in order. Further blocks turn queries.
TESSERA_KERNEL(kTileThreads, 4)
store_kernel(KvStoreArgs args, const SequenceSpan* sequences, const int32_t* positions) {
  const int32_t sequence = block_x() / args.pages.kv_heads;
  if (sequence >= static_cast<int32_t>(args.sequences.size())) {
    const int32_t rows = static_cast<int32_t>(args.sequences.size()) * args.pages.kv_heads;
    turn_queries(args, positions, block_x() - rows);
    return;
  }
  const SequenceSpan span = sequences[sequence];
  const int32_t group = span.closed_before() + block_y();
  const int32_t head = block_x() % args.pages.kv_heads;
  if (span.count == 0 || (block_y() > 0 && group >= span.last_group())) {
    return;
  }
  const int64_t row = args.pages.row_index(span.slot, args.layer, head);
  const bool in_order = grid_y() > 1 && args.pages.rows[row].high % kTile != 0;
  if (block_y() > 0 && in_order) {
    return;
  }
  int64_t first_dense = 0;
  for (int32_t i = 0; i < sequence && span.count > 1; ++i) {
    first_dense += dense_groups(sequences[i]);
  }
  const GroupStore store(args, positions, span, head, first_dense);
  const int32_t last = span.last_group();
  const int32_t end = in_order || group == last ? last : group + 1;
  TESSERA_UNROLL_BY(1)
  for (int32_t i = group; i < end + (block_y() == 0 ? 1 : 0); ++i) {
    store.run(i < end ? i : last);
  }
  if (grid_y() == 1 && thread() == 0) {
    store.count();
  }
}

// Adds the closed tokens to the rows' counts, after several blocks have stored the groups of a row.
TESSERA_KERNEL(kWarp)
count_kernel(KvPagesView pages, const SequenceSpan* sequences, int32_t count, int32_t layer) {
  const int32_t i = block_x() * kWarp + thread();
  if (i < count * pages.kv_heads) {
    const SequenceSpan span = sequences[i / pages.kv_heads];
    pages.rows[pages.row_index(span.slot, layer, i % pages.kv_heads)].high += closed_tokens(span);
  }
}

void check_rope(const KvStoreArgs& args) {
  const StepRope& by = args.rope;
  const int32_t head_dim = args.pages.head_dim;
  TESSERA_CHECK(by.rotary_dim > 0 && by.rotary_dim % 2 == 0 && by.rotary_dim <= head_dim,
                "kv_store: elements of a head that are rotated");
  TESSERA_CHECK(std::ssize(by.positions) == args.keys.rows && by.queries.rows == args.keys.rows,
                "kv_store: a position and queries for each token");
  TESSERA_CHECK(by.queries.cols % (int64_t{args.pages.kv_heads} * head_dim) == 0,
                "kv_store: query heads of each KV head");
}

void check_args(const KvStoreArgs& args) {
  const KvPagesView& pages = args.pages;
  TESSERA_CHECK(pages.head_dim > 0 && pages.head_dim % 8 == 0,
                "the CUDA backend serves head dimensions of a multiple of 8");
  TESSERA_CHECK(args.layer >= 0 && args.layer < pages.layers, "kv_store: no such layer");
  TESSERA_CHECK(args.keys.cols == int64_t{pages.kv_heads} * pages.head_dim &&
                    args.values.cols == args.keys.cols && args.values.rows == args.keys.rows,
                "kv_store: shapes of keys and values");
  int64_t groups = 0;
  for (const SequenceSpan& span : args.sequences) {
    TESSERA_CHECK(span.count >= 0 && span.context >= 0 && span.first_row >= 0 &&
                      span.first_row + span.count <= args.keys.rows,
                  "kv_store: a sequence's rows");
    const KvPageLayout& layout = pages.layouts[span.tiers.high];
    TESSERA_CHECK(layout.capacity > 0, "kv_store: no such tier");
    TESSERA_CHECK(
        layout.format.is_floats() || pages.head_dim <= kMaxDecodedDim,
        "the CUDA backend serves codes and sparse formats with head dimensions up to 128");
    groups += dense_groups(span);
  }
  TESSERA_CHECK(
      groups * pages.kv_heads * pages.residual_layout.page_bytes <= std::ssize(args.dense),
      "kv_store: too little memory for dense groups");
  if (args.rope.rotary_dim != 0) {
    check_rope(args);
  }
  TESSERA_CHECK(fits(args.frame, args.keys, pages), "kv_store: shapes of the key frame");
}

}  // namespace

void kv_store(const KvStoreArgs& args, Stream stream) {
  check_args(args);
  int32_t max_groups = 1;
  bool any_closes = false;
  for (const SequenceSpan& span : args.sequences) {
    max_groups = dense_groups(span) > max_groups ? dense_groups(span) : max_groups;
    any_closes = any_closes || span.closed_after() > span.closed_before();
  }
  const SequenceSpan* sequences = mirror(args.sequences, stream);
  const int32_t count = static_cast<int32_t>(args.sequences.size());
  const bool rotates = args.rope.rotary_dim > 0;
  const bool turns = rotates || !args.frame.empty();
  const int64_t query_blocks = turns ? div_ceil(args.keys.rows, max_groups) : 0;
  launch(stream,
         {.grid_x = static_cast<int32_t>(count + query_blocks) * args.pages.kv_heads,
          .grid_y = max_groups,
          .threads = kTileThreads,
          .shared_bytes = sizeof(TileMemory)},
         store_kernel, args, sequences, rotates ? mirror(args.rope.positions, stream) : nullptr);
  if (max_groups > 1 && any_closes) {
    launch(stream, {.grid_x = static_cast<int32_t>(div_ceil(count * args.pages.kv_heads, kWarp))},
           count_kernel, args.pages, sequences, count, args.layer);
  }
}

}  // namespace tessera::cuda
