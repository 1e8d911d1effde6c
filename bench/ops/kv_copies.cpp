#include "bench/ops/kv_copies.h"

#include <algorithm>
#include <cstring>

#include "bench/cycled_memory.h"

namespace tessera::bench {
namespace {

KvArenaShape arena_shape(const KvCopiesShape& shape) {
  KvArenaShape arena{.layout = KvPageLayout::make(shape.format, shape.head_dim, shape.page_tokens),
                     .slots = shape.sequences,
                     .layers = 1,
                     .kv_heads = shape.kv_heads,
                     .context = shape.context};
  const int64_t layer_pages = int64_t{arena.slots} * arena.kv_heads * arena.row_pages();
  const int64_t layers =
      std::max<int64_t>(2, div_ceil(shape.at_least, layer_pages * arena.layout.page_bytes));
  arena.layers =
      static_cast<int32_t>(shape.most_layers > 0 ? std::min(layers, shape.most_layers) : layers);
  arena.pages = static_cast<int32_t>(layer_pages * arena.layers);
  return arena;
}

}  // namespace

KvCopies::KvCopies(const KvCopiesShape& shape, const Backend& backend, Stream stream)
    : arena_(KvArena::make(arena_shape(shape))) {
  if (arena_ == nullptr) {
    give_up("the system has not enough memory; ask for less with --memory");
  }
  std::vector<KvRowResize> changes;
  for (int32_t slot = 0; slot < shape.sequences; ++slot) {
    changes.push_back({slot, 0, arena_->shape().row_pages()});
  }
  backend.kv_resize({.pool = arena_->pool(), .changes = changes}, stream);
  fill(backend, stream);
}

// One page of random tokens, as the op stores them, copied to all others: what the numbers are does
// not matter, only that they are usual ones in this format.
void KvCopies::fill(const Backend& backend, Stream stream) {
  const KvPagesView pages = view();
  const int32_t capacity = pages.layout.capacity;
  const int64_t width = int64_t{pages.kv_heads} * pages.layout.head_dim;
  const std::vector<float> floats = random_floats(2 * capacity * width);
  const std::vector<SequenceSpan> spans{{0, 0, capacity, 0}};
  backend.kv_store({.keys = {floats.data(), capacity, width, width},
                    .values = {floats.data() + capacity * width, capacity, width, width},
                    .sequences = spans,
                    .pages = pages,
                    .layer = 0},
                   stream);
  const int32_t filled = pages.row(0, 0, 0)[0];
  for (int32_t page = 0; page < arena_->shape().pages; ++page) {
    if (page != filled) {
      std::memcpy(pages.page(page), pages.page(filled),
                  static_cast<size_t>(pages.layout.page_bytes));
    }
  }
}

}  // namespace tessera::bench
