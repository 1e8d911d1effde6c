#include "kernels/check.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/pages/quantiser.h"

namespace tessera::cuda {
namespace {

using namespace simt;

constexpr int32_t kThreads = 128;
constexpr int32_t kTile = KvPageLayout::kKeyTile;
constexpr int32_t kGroupTiles = kKvGroup / kTile;

struct Ranges {
  CodeRange keys[kKvGroup];
  CodeRange values[kKvGroup];
};

// Where a row's token stands.
struct TokenPlace {
  std::byte* page;
  int32_t tile;  // of the page
  int32_t lane;  // of the tile
};

// One group of one row, by a block.
class GroupStore {
 public:
  TESSERA_DEVICE GroupStore(const KvStoreArgs& args, const SequenceSpan& span, int32_t head,
                            int64_t first_dense)
      : args_(args),
        pages_(args.pages),
        span_(span),
        head_(head),
        row_(args.pages.row_index(span.slot, args.layer, head)),
        first_dense_(first_dense) {}

  TESSERA_DEVICE void run(int32_t group) const {
    std::byte* dense = pages_.window(row_);
    if (group < span_.last_group()) {
      const int64_t index = first_dense_ + group - span_.closed_before();
      dense =
          args_.dense.data() + (index * pages_.kv_heads + head_) * pages_.window_layout.page_bytes;
      if (group == span_.closed_before() && span_.context % kKvGroup != 0) {
        copy(pages_.window(row_), dense, pages_.window_layout.page_bytes);
      }
    }
    sync_block();
    put(group, dense);
    sync_block();
    if (group < span_.closed_after()) {
      close(group, dense);
    }
    sync_block();
  }

 private:
  TESSERA_DEVICE static void copy(const std::byte* from, std::byte* to, int64_t bytes) {
    for (int64_t at = 16 * thread(); at < bytes; at += 16 * kThreads) {
      store_words(to + at, load_words(from + at));
    }
  }

  // The span's tokens of the group, into a page of the window's layout.
  TESSERA_DEVICE void put(int32_t group, std::byte* dense) const {
    const KvPageLayout& window = pages_.window_layout;
    const int32_t first = group * kKvGroup;
    const int32_t begin = span_.context > first ? span_.context : first;
    const int32_t span_end = span_.context + span_.count;
    const int32_t end = span_end < first + kKvGroup ? span_end : first + kKvGroup;
    const int32_t count = (end - begin) * pages_.head_dim;
    for (int32_t i = thread(); i < count; i += kThreads) {
      const int32_t position = begin + i / pages_.head_dim;
      const int32_t channel = i % pages_.head_dim;
      const int64_t from = span_.first_row + position - span_.context;
      const int64_t column = int64_t{head_} * pages_.head_dim + channel;
      const int32_t tile = position % kKvGroup / kTile;
      const int32_t lane = position % kTile;
      put_float(args_.keys.data[from * args_.keys.stride + column],
                dense + window.keys_offset(tile) + window.key_offset(lane, channel));
      put_float(args_.values.data[from * args_.values.stride + column],
                dense + window.values_offset(tile) + window.value_offset(lane, channel));
    }
  }
  TESSERA_DEVICE void put_float(float x, std::byte* to) const {
    if (pages_.window_layout.format == kKvF16) {
      *reinterpret_cast<f16*>(to) = to_stored_f16(x);
    } else {
      *reinterpret_cast<float*>(to) = x;
    }
  }

  // An element of a full dense group of f16.
  TESSERA_DEVICE float key(const std::byte* dense, int32_t token, int32_t channel) const {
    const KvPageLayout& window = pages_.window_layout;
    return as_f32(*reinterpret_cast<const f16*>(dense + window.keys_offset(token / kTile) +
                                                window.key_offset(token % kTile, channel)));
  }
  TESSERA_DEVICE float value(const std::byte* dense, int32_t token, int32_t channel) const {
    const KvPageLayout& window = pages_.window_layout;
    return as_f32(*reinterpret_cast<const f16*>(dense + window.values_offset(token / kTile) +
                                                window.value_offset(token % kTile, channel)));
  }

  // Encodes a full dense group behind the row's high tokens.
  TESSERA_DEVICE void close(int32_t group, const std::byte* dense) const {
    const KvPageLayout& layout = pages_.layouts[span_.tiers.high];
    const int32_t stored = pages_.rows[row_].high + (group - span_.closed_before()) * kKvGroup;
    Ranges& ranges = shared<Ranges>();
    if (layout.format.is_codes()) {
      find_ranges(layout.format, dense, ranges);
      sync_block();
    }
    if (stored % kTile != 0) {
      return close_tokens(layout, stored, dense, ranges);
    }
    for (int32_t tile = 0; tile < kGroupTiles; ++tile) {
      const TokenPlace to = place(layout, stored + tile * kTile);
      if (layout.format.is_codes()) {
        close_tile(layout, to, dense, tile * kTile, ranges);
      } else {
        const KvPageLayout& window = pages_.window_layout;
        copy(dense + window.keys_offset(tile), to.page + layout.keys_offset(to.tile),
             layout.key_tile_bytes());
        copy(dense + window.values_offset(tile), to.page + layout.values_offset(to.tile),
             layout.value_tile_bytes());
      }
    }
  }

  TESSERA_DEVICE TokenPlace place(const KvPageLayout& layout, int32_t token) const {
    const int32_t entry = token / layout.capacity;
    simt::check(entry < pages_.row_pages);
    const int32_t page_id = pages_.table(row_)[entry];
    simt::check(page_id >= 0);
    return {pages_.page(page_id), token % layout.capacity / kTile, token % kTile};
  }

  // Half of the threads have a token's key each, half a token's value.
  TESSERA_DEVICE void find_ranges(KvFormat format, const std::byte* dense, Ranges& ranges) const {
    static_assert(kThreads == 2 * kKvGroup);
    const int32_t token = thread() % kKvGroup;
    const bool of_key = thread() < kKvGroup;
    float lowest = of_key ? key(dense, token, 0) : value(dense, token, 0);
    float highest = lowest;
    for (int32_t c = 1; c < pages_.head_dim; ++c) {
      const float x = of_key ? key(dense, token, c) : value(dense, token, c);
      lowest = min(lowest, x);
      highest = max(highest, x);
    }
    (of_key ? ranges.keys : ranges.values)[token] =
        code_range(lowest, highest, of_key ? format.key_bits : format.value_bits);
  }

  TESSERA_DEVICE static void put_ranges(const KvPageLayout& layout, const TokenPlace& to,
                                        const CodeRange& keys, const CodeRange& values) {
    const auto half = [&](int64_t offset) -> f16& {
      return reinterpret_cast<f16*>(to.page + offset)[to.lane];
    };
    half(layout.key_scales_offset(to.tile)) = keys.scale;
    half(layout.key_zeros_offset(to.tile)) = keys.zero;
    half(layout.value_scales_offset(to.tile)) = values.scale;
    half(layout.value_zeros_offset(to.tile)) = values.zero;
  }

  // A tile of 16 tokens from `first` on. A thread makes whole words, so no two write to one byte.
  TESSERA_DEVICE void close_tile(const KvPageLayout& layout, const TokenPlace& to,
                                 const std::byte* dense, int32_t first,
                                 const Ranges& ranges) const {
    if (thread() < kTile) {
      put_ranges(layout, {to.page, to.tile, thread()}, ranges.keys[first + thread()],
                 ranges.values[first + thread()]);
    }
    const int32_t key_bits = layout.format.key_bits;
    auto* keys = reinterpret_cast<uint32_t*>(to.page + layout.keys_offset(to.tile));
    for (int32_t i = thread(); i < layout.key_tile_bytes() / 4; i += kThreads) {
      const int32_t token = first + i % kTile;
      uint32_t word = 0;
      for (int32_t part = 0; part < 8 / key_bits; ++part) {
        for (int32_t e = 0; e < 4; ++e) {
          const int32_t channel = 4 * (i / kTile * (8 / key_bits) + part) + e;
          if (channel < pages_.head_dim) {
            word |= code_of(key(dense, token, channel), ranges.keys[token], key_bits)
                    << (8 * e + key_bits * part);
          }
        }
      }
      keys[i] = word;
    }
    const int32_t value_bits = layout.format.value_bits;
    auto* values = reinterpret_cast<uint32_t*>(to.page + layout.values_offset(to.tile));
    for (int32_t i = thread(); i < layout.value_tile_bytes() / 4; i += kThreads) {
      uint32_t word = 0;
      for (int32_t part = 0; part < 8 / value_bits; ++part) {
        const int32_t sub_line = i / kTile * (8 / value_bits) + part;
        const int32_t channel = 16 * (sub_line / 4) + i % kTile;
        for (int32_t e = 0; e < 4 && channel < pages_.head_dim; ++e) {
          const int32_t token = first + 4 * (sub_line % 4) + e;
          word |= code_of(value(dense, token, channel), ranges.values[token], value_bits)
                  << (8 * e + value_bits * part);
        }
      }
      values[i] = word;
    }
  }

  // Where a policy left a number of tokens that is not whole tiles: token after token, because
  // neighbours share bytes.
  TESSERA_DEVICE void close_tokens(const KvPageLayout& layout, int32_t stored,
                                   const std::byte* dense, const Ranges& ranges) const {
    for (int32_t token = 0; token < kKvGroup; ++token) {
      const TokenPlace to = place(layout, stored + token);
      std::byte* keys = to.page + layout.keys_offset(to.tile);
      std::byte* values = to.page + layout.values_offset(to.tile);
      if (!layout.format.is_codes()) {
        for (int32_t c = thread(); c < pages_.head_dim; c += kThreads) {
          *reinterpret_cast<f16*>(keys + layout.key_offset(to.lane, c)) =
              as_f16(key(dense, token, c));
          *reinterpret_cast<f16*>(values + layout.value_offset(to.lane, c)) =
              as_f16(value(dense, token, c));
        }
        continue;
      }
      if (to.lane == 0) {  // the first token of a tile clears the rest of it
        clear(keys, layout.key_tile_bytes());
        clear(values, layout.value_tile_bytes());
        if (thread() < kTile) {
          put_ranges(layout, {to.page, to.tile, thread()}, {}, {});
        }
        sync_block();
      }
      // A thread has all channels whose codes share a byte: in keys four apart, in values 16.
      for (int32_t i = thread(); 4 * i < pages_.head_dim; i += kThreads) {
        for (int32_t part = 0; part < 4; ++part) {
          const int32_t channel = 16 * (i / 4) + 4 * part + i % 4;
          if (channel < pages_.head_dim) {
            put_code(
                keys, layout.key_place(to.lane, channel),
                code_of(key(dense, token, channel), ranges.keys[token], layout.format.key_bits),
                layout.format.key_bits);
          }
        }
      }
      for (int32_t i = thread(); i < (pages_.head_dim + 31) / 32 * 16; i += kThreads) {
        for (int32_t channel = 32 * (i / 16) + i % 16; channel <= 32 * (i / 16) + i % 16 + 16;
             channel += 16) {
          if (channel < pages_.head_dim) {
            put_code(values, layout.value_place(to.lane, channel),
                     code_of(value(dense, token, channel), ranges.values[token],
                             layout.format.value_bits),
                     layout.format.value_bits);
          }
        }
      }
      if (thread() == 0) {
        put_ranges(layout, to, ranges.keys[token], ranges.values[token]);
      }
      sync_block();
    }
  }

  TESSERA_DEVICE static void clear(std::byte* bytes, int64_t count) {
    for (int64_t at = thread(); at < count; at += kThreads) {
      bytes[at] = std::byte{0};
    }
  }

  TESSERA_DEVICE static void put_code(std::byte* tile, KvPageLayout::CodePlace at, uint32_t code,
                                      int32_t bits) {
    const uint32_t mask = ((1u << bits) - 1) << at.shift;
    tile[at.byte] =
        static_cast<std::byte>((static_cast<uint32_t>(tile[at.byte]) & ~mask) | code << at.shift);
  }

  const KvStoreArgs& args_;
  const KvPagesView& pages_;
  const SequenceSpan& span_;
  int32_t head_;
  int64_t row_;
  int64_t first_dense_;
};

// Blocks of a row: one for each of its groups but the last, which the first of them takes after its
// own, because that writes the window that the first may have to read.
TESSERA_KERNEL(kThreads) store_kernel(KvStoreArgs args, const SequenceSpan* sequences) {
  const int32_t sequence = block_y() / args.pages.kv_heads;
  const SequenceSpan span = sequences[sequence];
  const int32_t group = span.closed_before() + block_x();
  if (block_x() > 0 && group >= span.last_group()) {
    return;
  }
  int64_t first_dense = 0;
  for (int32_t i = 0; i < sequence && span.count > 1; ++i) {
    first_dense += dense_groups(sequences[i]);
  }
  const GroupStore store(args, span, block_y() % args.pages.kv_heads, first_dense);
  store.run(group);
  if (block_x() == 0 && group < span.last_group()) {
    store.run(span.last_group());
  }
}

// After all groups of a row are stored: they count.
TESSERA_KERNEL(kWarp)
count_kernel(KvPagesView pages, const SequenceSpan* sequences, int32_t count, int32_t layer) {
  const int32_t i = block_x() * kWarp + thread();
  if (i < count * pages.kv_heads) {
    const SequenceSpan span = sequences[i / pages.kv_heads];
    pages.rows[pages.row_index(span.slot, layer, i % pages.kv_heads)].high +=
        (span.closed_after() - span.closed_before()) * kKvGroup;
  }
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
    TESSERA_CHECK(span.count > 0 && span.context >= 0 && span.first_row >= 0 &&
                      span.first_row + span.count <= args.keys.rows,
                  "kv_store: a sequence's rows");
    const KvPageLayout& layout = pages.layouts[span.tiers.high];
    TESSERA_CHECK(layout.capacity > 0, "kv_store: no such tier");
    TESSERA_CHECK(!layout.format.is_sparse(), "kv_store: a page format without a CUDA kernel");
    groups += dense_groups(span);
  }
  TESSERA_CHECK(groups * pages.kv_heads * pages.window_layout.page_bytes <= std::ssize(args.dense),
                "kv_store: too little memory for dense groups");
}

}  // namespace

void kv_store(const KvStoreArgs& args, Stream stream) {
  check_args(args);
  int32_t most_groups = 1;
  bool any_closes = false;
  for (const SequenceSpan& span : args.sequences) {
    most_groups = dense_groups(span) > most_groups ? dense_groups(span) : most_groups;
    any_closes = any_closes || span.closed_after() > span.closed_before();
  }
  const SequenceSpan* sequences = mirror(args.sequences, stream);
  const int32_t count = static_cast<int32_t>(args.sequences.size());
  launch(stream,
         {.grid_x = most_groups,
          .grid_y = count * args.pages.kv_heads,
          .threads = kThreads,
          .shared_bytes = sizeof(Ranges)},
         store_kernel, args, sequences);
  if (any_closes) {
    launch(stream, {.grid_x = static_cast<int32_t>(div_ceil(count * args.pages.kv_heads, kWarp))},
           count_kernel, args.pages, sequences, count, args.layer);
  }
}

}  // namespace tessera::cuda
