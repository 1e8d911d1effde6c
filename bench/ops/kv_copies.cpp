#include "bench/ops/kv_copies.h"

#include <algorithm>
#include <cstring>

#include "bench/cycled_memory.h"

namespace tessera::bench {
namespace {

KvArenaShape arena_shape(const KvCopiesShape& shape) {
  KvArenaShape arena{
      .formats = {shape.format},
      .head_dim = shape.head_dim,
      .page_bytes = KvPageLayout::make(shape.format, shape.head_dim, shape.page_tokens).page_bytes,
      .slots = shape.sequences,
      .layers = 1,
      .kv_heads = shape.kv_heads,
      .context = shape.context,
      .marks = shape.marks};
  const int32_t shared_pages = shape.shared / arena.layout(0).capacity;
  const int64_t layer_pages =
      (int64_t{arena.slots} * (arena.row_pages() - shared_pages) + shared_pages) * arena.kv_heads;
  const int64_t layers =
      std::max<int64_t>(2, div_ceil(shape.at_least, layer_pages * arena.page_bytes));
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
  std::vector<KvGrowth> grown{{0, {}, arena_->shape().closed_tokens()}};
  std::vector<KvFork> forks;
  for (int32_t slot = 1; slot < shape.sequences; ++slot) {
    grown.push_back({slot, {}, arena_->shape().closed_tokens() - shape.shared});
    forks.push_back({0, slot, {}, shape.shared});
  }
  const auto grow = [&](std::span<const KvGrowth> growths) {
    backend.kv_resize({.pool = arena_->pool(), .released = {}, .grown = growths}, stream);
  };
  grow({grown.data(), 1});
  fill(backend, stream);
  if (shape.shared > 0) {
    const KvRow whole{arena_->shape().closed_tokens(), 0};
    std::fill_n(view().rows, arena_->shape().slot_rows(), whole);  // of the first slot
    backend.kv_fork({.pool = arena_->pool(), .forks = forks}, stream);
  }
  grow(std::span<const KvGrowth>(grown).subspan(1));
  for (int32_t layer = 0; layer < layers(); ++layer) {
    set_context(layer, shape.context);
  }
}

// One group of random tokens, as the op stores them: its first page is copied to all others, its
// window likewise. What the numbers are does not matter, only that they are usual ones in this
// format.
void KvCopies::fill(const Backend& backend, Stream stream) {
  const KvPagesView pages = view();
  const int64_t width = int64_t{pages.kv_heads} * pages.head_dim;
  const std::vector<float> floats = random_floats(2 * kKvGroup * width);
  const std::vector<SequenceSpan> spans{{0, 0, kKvGroup, 0, {}}};
  if (arena_->shape().closed_tokens() == 0) {
    give_up("a context of less than a group");
  }
  backend.kv_store({.keys = {floats.data(), kKvGroup, width, width},
                    .values = {floats.data() + kKvGroup * width, kKvGroup, width, width},
                    .sequences = spans,
                    .pages = pages,
                    .layer = 0,
                    .dense = {}},
                   stream);
  const int32_t filled = pages.table(0)[0];
  for (int32_t page = 0; page < arena_->shape().pages; ++page) {
    if (page != filled) {
      std::memcpy(pages.page(page), pages.page(filled), static_cast<size_t>(pages.page_bytes));
    }
  }
  for (int64_t row = 1; row < arena_->shape().rows(); ++row) {
    std::memcpy(pages.window(row), pages.window(0),
                static_cast<size_t>(pages.window_layout.page_bytes));
  }
}

void KvCopies::set_context(int32_t layer, int32_t context) {
  const KvPagesView pages = view();
  for (int32_t slot = 0; slot < arena_->shape().slots; ++slot) {
    std::fill_n(pages.rows + pages.row_index(slot, layer, 0), pages.kv_heads,
                KvRow{context / kKvGroup * kKvGroup, 0});
  }
}

std::vector<std::byte> KvCopies::dense(int64_t groups) const {
  const KvPagesView pages = view();
  const auto window_bytes = static_cast<size_t>(pages.window_layout.page_bytes);
  std::vector<std::byte> all;
  for (int64_t i = 0; i < groups * pages.kv_heads; ++i) {
    all.insert(all.end(), pages.window(0), pages.window(0) + window_bytes);
  }
  return all;
}

}  // namespace tessera::bench
