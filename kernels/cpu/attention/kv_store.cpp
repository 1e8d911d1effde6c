#include <algorithm>
#include <cstring>

#include "kernels/check.h"
#include "kernels/cpu/attention/limits.h"
#include "kernels/cpu/attention/ops.h"
#include "kernels/cpu/attention/row_ops.h"
#include "kernels/cpu/thread_pool.h"

namespace tessera {
namespace {

// A token's channels in a page's element type: `in` itself, or converted into `buffer`.
template <class T>
const T* as_elements(const RowOps& ops, const float* in, int64_t count, T* buffer) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return in;
  } else {
    ops.to_f16(in, count, buffer);
    return buffer;
  }
}

template <class T>
void store_keys(const RowOps& ops, const float* in, const KvPageLayout& layout, int32_t token,
                std::byte* page) {
  T buffer[kMaxHeadDim];
  const T* keys = as_elements(ops, in, layout.head_dim, buffer);
  T* tile = reinterpret_cast<T*>(page + layout.key_offset(token, 0));
  for (int32_t channel = 0; channel < layout.head_dim; ++channel) {
    tile[int64_t{channel} * KvPageLayout::kKeyTile] = keys[channel];
  }
}

template <class T>
void store_values(const RowOps& ops, const float* in, const KvPageLayout& layout, int32_t token,
                  std::byte* page) {
  T* row = reinterpret_cast<T*>(page + layout.value_offset(token));
  const T* values = as_elements(ops, in, layout.head_dim, row);
  if (values != row) {
    std::memcpy(row, values, static_cast<size_t>(layout.head_dim) * sizeof(T));
  }
}

// The tokens of one sequence for one KV head.
void store_head(const RowOps& ops, const KvStoreArgs& args, const SequenceSpan& span,
                int32_t head) {
  const KvPageLayout& layout = args.pages.layout;
  const int32_t* row = args.pages.row(span.slot, args.layer, head);
  const auto keys = layout.format.key_bits == 16 ? store_keys<f16> : store_keys<float>;
  const auto values = layout.format.value_bits == 16 ? store_values<f16> : store_values<float>;
  const int64_t column = int64_t{head} * layout.head_dim;
  for (int32_t i = 0; i < span.count; ++i) {
    const int32_t position = span.context + i;
    const int32_t page_id = row[position / layout.capacity];
    TESSERA_CHECK(page_id >= 0, "kv_store: the row has no page for a token");
    std::byte* page = args.pages.page(page_id);
    const int32_t token = position % layout.capacity;
    keys(ops, args.keys.row(span.first_row + i).data() + column, layout, token, page);
    values(ops, args.values.row(span.first_row + i).data() + column, layout, token, page);
  }
}

void store(const RowOps& ops, const KvStoreArgs& args, Stream stream) {
  const KvPagesView& pages = args.pages;
  check_layout(pages.layout);
  TESSERA_CHECK(args.keys.cols == int64_t{pages.kv_heads} * pages.layout.head_dim,
                "kv_store: columns of keys");
  TESSERA_CHECK(args.values.cols == args.keys.cols, "kv_store: columns of values");
  for (const SequenceSpan& span : args.sequences) {
    TESSERA_CHECK(span.first_row >= 0 && span.first_row + span.count <= args.keys.rows,
                  "kv_store: a sequence's rows");
    TESSERA_CHECK(
        int64_t{span.context} + span.count <= int64_t{pages.row_pages} * pages.layout.capacity,
        "kv_store: more tokens than a row of pages holds");
  }
  // A decode step writes a few kilobytes: waking a thread takes longer than that.
  const int64_t items = static_cast<int64_t>(args.sequences.size()) * pages.kv_heads;
  const int64_t grain = args.keys.rows * args.keys.cols <= 16384 ? std::max<int64_t>(1, items) : 1;
  ThreadPool::of(stream).parallel_for(items, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {
      store_head(ops, args, args.sequences[static_cast<size_t>(item / pages.kv_heads)],
                 static_cast<int32_t>(item % pages.kv_heads));
    }
  });
}

}  // namespace

namespace scalar {
void kv_store(const KvStoreArgs& args, Stream stream) {
  store(kRowOps, args, stream);
}
}  // namespace scalar
namespace avx2 {
void kv_store(const KvStoreArgs& args, Stream stream) {
  store(kRowOps, args, stream);
}
}  // namespace avx2
namespace avx512 {
void kv_store(const KvStoreArgs& args, Stream stream) {
  store(kRowOps, args, stream);
}
}  // namespace avx512

}  // namespace tessera
