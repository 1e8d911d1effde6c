#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/pages/key_sketch.h"
#include "kernels/cpu/pages/kv_ops.h"
#include "kernels/cpu/pages/page_codec.h"
#include "kernels/cpu/pages/page_ops.h"
#include "kernels/cpu/pages/token_ops.h"
#include "kernels/cpu/simd/limits.h"
#include "kernels/cpu/threads/thread_pool.h"

namespace tessera {
namespace {

constexpr int32_t kTile = KvPageLayout::kKeyTile;

class Store {
 public:
  Store(const PageOps& ops, const TokenOps& token_ops, const KvStoreArgs& args)
      : ops_(ops),
        token_ops_(token_ops),
        args_(args),
        residual_shape_(args.pages.residual_layout),
        staged_shape_(KvPageLayout::make(kKvF16, args.pages.head_dim, kTile)) {}

  // Stores one sequence's tokens of one KV head. Its dense groups begin at `dense_group` of the
  // step.
  void run(const SequenceSpan& span, int32_t head, int64_t dense_group) const {
    const KvPagesView& pages = args_.pages;
    turn_queries(span, head);
    const int64_t row = pages.row_index(span.slot, args_.layer, head);
    const int32_t first_group = span.closed_before();
    const auto page_bytes = static_cast<size_t>(pages.residual_layout.page_bytes);
    const std::byte* before = nullptr;  // the previous group, if this span has assembled it
    for (int32_t group = first_group; group <= span.last_group(); ++group, ++dense_group) {
      std::byte* page = pages.residual(row);
      if (group < span.last_group()) {
        std::byte* dense = args_.dense.data() +
                           (dense_group * pages.kv_heads + head) * pages.residual_layout.page_bytes;
        if (group == first_group && span.context % kKvGroup != 0) {
          std::memcpy(dense, page, page_bytes);
        }
        page = dense;
      } else if (span.newest > 0 && before != nullptr) {
        std::memcpy(page, before, page_bytes);
      }
      before = page;
      put(span, group, head, page);
      if (group < span.closed_after()) {
        close(pages.layouts[span.tiers.high], row, page);
      }
    }
  }

 private:
  // Stores the span's tokens of one group.
  void put(const SequenceSpan& span, int32_t group, int32_t head, std::byte* page) const {
    const int32_t begin = std::max(span.context, group * kKvGroup);
    const int32_t end = std::min(span.context + span.count, (group + 1) * kKvGroup);
    const int64_t column = int64_t{head} * args_.pages.head_dim;
    float framed[kMaxHeadDim];
    const auto each = [&](auto&& put_token) {
      for (int32_t position = begin; position < end; ++position) {
        const int64_t from = span.first_row + position - span.context;
        put_token(in_frame(args_.keys.row(from).data() + column, column, framed),
                  args_.values.row(from).data() + column, position % kKvGroup);
      }
    };
    if (args_.pages.residual_layout.format.is_codes()) {
      alignas(64) std::byte staged[kTile * kMaxHeadDim * 2 * sizeof(f16)];
      each([&](const float* keys, const float* values, int32_t token) {
        put_f16(staged_shape_.layout, keys, values, staged, token % kTile);
        if (token % kTile == kTile - 1 || token == (end - 1) % kKvGroup) {
          encode_staged(staged, begin % kKvGroup, token, page);
        }
      });
      return;
    }
    each([&](const float* keys, const float* values, int32_t token) {
      put_token(keys, values, page, token);
    });
  }

  // Returns: a head's key in the frame, which begins at `column`. `framed` holds it if it differs.
  const float* in_frame(const float* key, int64_t column, float* framed) const {
    if (args_.frame.empty()) return key;
    const float* centre = args_.frame.centre.data() + column;
    const float* scale = args_.frame.scale.data() + column;
    for (int32_t c = 0; c < args_.pages.head_dim; ++c) {
      framed[c] = (key[c] - centre[c]) * scale[c];
    }
    return framed;
  }

  // Brings the span's queries of one KV head into the frame.
  void turn_queries(const SequenceSpan& span, int32_t head) const {
    if (args_.frame.empty()) return;
    const int32_t head_dim = args_.pages.head_dim;
    const int64_t cols = args_.frame.queries.cols / args_.pages.kv_heads;
    const float* scale = args_.frame.scale.data() + int64_t{head} * head_dim;
    for (int32_t i = 0; i < span.count; ++i) {
      float* queries = args_.frame.queries.row(span.first_row + i).data() + head * cols;
      for (int64_t first = 0; first < cols; first += head_dim) {
        for (int32_t c = 0; c < head_dim; ++c) {
          queries[first + c] *= KeyFrame::inverse(scale[c]);
        }
      }
    }
  }

  // Encodes the tokens of one tile that this step stores: [begin, last], or from the tile's start.
  // `staged` has their f16 form.
  void encode_staged(std::byte* staged, int32_t begin, int32_t last, std::byte* page) const {
    const KvPageLayout& residual = args_.pages.residual_layout;
    const int32_t tile = last / kTile;
    if (begin <= tile * kTile && last % kTile == kTile - 1) {
      ops_.encode_tile(dense_tile(staged_shape_.layout, staged, 0),
                       code_tile(residual, page, tile));
      return;
    }
    for (int32_t token = std::max(begin, tile * kTile); token <= last; ++token) {
      token_ops_.demote(staged_shape_, {staged, token % kTile}, residual_shape_, {page, token},
                        nullptr);
    }
  }

  void put_token(const float* keys, const float* values, std::byte* page, int32_t token) const {
    const KvPageLayout& residual = args_.pages.residual_layout;
    if (residual.format != kKvF16) {
      encode_token(residual, keys, values, page, token);
      return;
    }
    put_f16(residual, keys, values, page, token);
  }

  void put_f16(const KvPageLayout& layout, const float* keys, const float* values, std::byte* page,
               int32_t token) const {
    f16 halves[kMaxHeadDim];
    ops_.to_stored_f16(keys, layout.head_dim, halves);
    const DenseTile tile = dense_tile(layout, page, token / kTile);
    auto* channel = const_cast<f16*>(tile.keys) + token % kTile;
    for (int32_t c = 0; c < layout.head_dim; ++c, channel += kTile) {
      *channel = halves[c];
    }
    ops_.to_stored_f16(values, layout.head_dim,
                       const_cast<f16*>(tile.values) + token % kTile * layout.head_dim);
  }

  static DenseTile dense_tile(const KvPageLayout& layout, const std::byte* page, int64_t tile) {
    return {.keys = reinterpret_cast<const f16*>(page + layout.keys_offset(tile)),
            .values = reinterpret_cast<const f16*>(page + layout.values_offset(tile)),
            .head_dim = layout.head_dim};
  }

  // Appends a full dense group to the row's high tier.
  void close(const KvPageLayout& layout, int64_t row, std::byte* group) const {
    int32_t& stored = args_.pages.rows[row].high;
    const int32_t before = stored;
    TESSERA_CHECK(div_ceil(stored + kKvGroup, layout.capacity) <= args_.pages.row_pages,
                  "kv_store: more tokens than a row of pages holds");
    const TileShape shape(layout);
    const bool aligned = stored % kTile == 0;
    const KvPageLayout& residual = args_.pages.residual_layout;
    for (int32_t tile = 0; tile < kKvGroup / kTile; ++tile, stored += kTile) {
      if (layout.format.is_sparse()) {
        close_sparse(layout, row, stored, dense_tile(residual, group, tile));
      } else if (layout.format == residual.format && residual.format.is_floats()) {
        close_floats(layout, row, stored, group, tile);
      } else if (aligned && residual.format == kKvF16 && layout.format.is_codes() &&
                 !layout.format.rotated) {
        ops_.encode_tile(
            dense_tile(residual, group, tile),
            code_tile(layout, page_of(layout, row, stored), stored % layout.capacity / kTile));
      } else {
        close_tokens(shape, row, stored, group, tile);
      }
    }
    if (has_key_sketch(args_.pages, layout)) {
      sketch_pages(layout, row, before / layout.capacity, stored);
    }
  }

  // Sketches the keys of the row's pages from entry `first` on. The last one may be partly filled.
  void sketch_pages(const KvPageLayout& layout, int64_t row, int32_t first, int32_t stored) const {
    for (int32_t place = first * layout.capacity; place < stored; place += layout.capacity) {
      write_key_sketch(layout, std::min(layout.capacity, stored - place),
                       page_of(layout, row, place));
    }
  }

  // Copies tokens unchanged. A tile's tokens are divided between two tiles if a policy left a
  // number of tokens that is not whole tiles.
  void close_floats(const KvPageLayout& layout, int64_t row, int32_t place, const std::byte* group,
                    int64_t tile) const {
    const KvPageLayout& residual = args_.pages.residual_layout;
    const std::byte* keys = group + residual.keys_offset(tile);
    const std::byte* values = group + residual.values_offset(tile);
    for (int32_t done = 0; done < kTile;) {
      const int32_t lane = (place + done) % kTile;
      const int32_t count = kTile - std::max(lane, done);
      const int64_t to_tile = (place + done) % layout.capacity / kTile;
      std::byte* page = page_of(layout, row, place + done);
      for (int32_t c = 0; c < layout.head_dim; ++c) {
        std::memcpy(page + layout.keys_offset(to_tile) + layout.key_offset(lane, c),
                    keys + layout.key_offset(done, c),
                    static_cast<size_t>(count * layout.format.key_bits / 8));
      }
      std::memcpy(page + layout.values_offset(to_tile) + layout.value_offset(lane, 0),
                  values + layout.value_offset(done, 0),
                  static_cast<size_t>(layout.value_offset(count, 0)));
      done += count;
    }
  }

  // Works at any place, because each token has its own bytes.
  void close_sparse(const KvPageLayout& layout, int64_t row, int32_t place,
                    const DenseTile& from) const {
    f16 keys[kTile][kMaxHeadDim];
    for (int32_t c = 0; c < from.head_dim; ++c) {
      for (int32_t i = 0; i < kTile; ++i) {
        keys[i][c] = from.keys[c * kTile + i];
      }
    }
    for (int32_t i = 0; i < kTile; ++i, ++place) {
      const int32_t lane = place % kTile;
      std::byte* page = page_of(layout, row, place);
      const int64_t tile = place % layout.capacity / kTile;
      ops_.encode_sparse(sparse_keys(layout), keys[i], lane, page + layout.keys_offset(tile),
                         reinterpret_cast<f16*>(page + layout.key_scales_offset(tile)));
      ops_.encode_sparse(sparse_values(layout), from.values + i * from.head_dim, lane,
                         page + layout.values_offset(tile),
                         reinterpret_cast<f16*>(page + layout.value_scales_offset(tile)));
    }
  }

  // For rotated formats, for fp8, for residual buffers of codes, and for rows in which a policy
  // left a number of tokens that is not whole tiles. Codes that are encoded again in their own
  // format stay as they are.
  void close_tokens(const TileShape& shape, int64_t row, int32_t place, std::byte* group,
                    int32_t tile) const {
    for (int32_t i = 0; i < kTile; ++i, ++place) {
      token_ops_.demote(residual_shape_, {group, tile * kTile + i}, shape,
                        {page_of(shape.layout, row, place), place % shape.layout.capacity},
                        nullptr);
    }
  }

  std::byte* page_of(const KvPageLayout& layout, int64_t row, int32_t place) const {
    const int32_t page_id = args_.pages.table(row)[place / layout.capacity];
    TESSERA_CHECK(page_id >= 0, "kv_store: the row has no page for a group that closes");
    return args_.pages.page(page_id);
  }

  const PageOps& ops_;
  const TokenOps& token_ops_;
  const KvStoreArgs& args_;
  const TileShape residual_shape_;
  const TileShape staged_shape_;  // a tile of f16, on its way to a residual buffer of codes
};

void check(const KvStoreArgs& args) {
  const KvPagesView& pages = args.pages;
  TESSERA_CHECK(pages.head_dim > 0 && pages.head_dim <= kMaxHeadDim,
                "the CPU backend serves head dimensions up to 256");
  TESSERA_CHECK(args.layer >= 0 && args.layer < pages.layers, "kv_store: no such layer");
  TESSERA_CHECK(args.rope.rotary_dim == 0, "the CPU's kv_store does not rotate");
  TESSERA_CHECK(args.keys.cols == int64_t{pages.kv_heads} * pages.head_dim,
                "kv_store: columns of keys");
  TESSERA_CHECK(fits(args.frame, args.keys, pages), "kv_store: shapes of the key frame");
  TESSERA_CHECK(args.values.cols == args.keys.cols && args.values.rows == args.keys.rows,
                "kv_store: shape of values");
  int64_t groups = 0;
  for (const SequenceSpan& span : args.sequences) {
    TESSERA_CHECK(span.count > 0 && span.context >= 0 && span.first_row >= 0 &&
                      span.first_row + span.count <= args.keys.rows,
                  "kv_store: a sequence's rows");
    TESSERA_CHECK(pages.layouts[span.tiers.high].capacity > 0, "kv_store: no such tier");
    groups += dense_groups(span);
  }
  TESSERA_CHECK(groups * pages.kv_heads * pages.residual_layout.page_bytes <=
                    static_cast<int64_t>(args.dense.size()),
                "kv_store: too little memory for dense groups");
}

// Writing one sequence's tokens in a decode step takes no longer than handing them to a thread.
int64_t items_per_range(int64_t items, int64_t floats) {
  constexpr int64_t kFloats = 2048;
  return std::max<int64_t>(1, floats <= kFloats ? items : items * kFloats / floats);
}

void store(const PageOps& vector_ops, const TokenOps& token_ops, const KvStoreArgs& args,
           Stream stream) {
  check(args);
  const bool whole_vectors = args.pages.head_dim % kHeadDimMultiple == 0;
  const Store store(whole_vectors ? vector_ops : scalar::kPageOps,
                    whole_vectors ? token_ops : scalar::kTokenOps, args);
  const int64_t heads = args.pages.kv_heads;
  const int64_t items = std::ssize(args.sequences) * heads;
  const int64_t grain = items_per_range(items, args.keys.rows * args.keys.cols);
  ThreadPool::of(stream).parallel_for(items, grain, [&](int64_t begin, int64_t end, int) {
    int64_t sequence = 0;
    int64_t dense_group = 0;  // dense groups before `sequence`
    for (int64_t item = begin; item < end; ++item) {
      for (; sequence < item / heads; ++sequence) {
        dense_group += dense_groups(args.sequences[static_cast<size_t>(sequence)]);
      }
      store.run(args.sequences[static_cast<size_t>(sequence)], static_cast<int32_t>(item % heads),
                dense_group);
    }
  });
}

}  // namespace

namespace scalar {
void kv_store(const KvStoreArgs& args, Stream stream) {
  store(kPageOps, kTokenOps, args, stream);
}
}  // namespace scalar
namespace avx2 {
void kv_store(const KvStoreArgs& args, Stream stream) {
  store(kPageOps, kTokenOps, args, stream);
}
}  // namespace avx2
namespace avx512 {
void kv_store(const KvStoreArgs& args, Stream stream) {
  store(kPageOps, kTokenOps, args, stream);
}
}  // namespace avx512

}  // namespace tessera
