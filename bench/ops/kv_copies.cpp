#include "bench/ops/kv_copies.h"

#include <algorithm>
#include <random>

#include "bench/cycled_memory.h"

namespace tessera::bench {
namespace {

KvArenaShape arena_shape(const KvCopiesShape& shape) {
  const KvPageLayout layout = KvPageLayout::make(shape.format, shape.head_dim, shape.page_tokens);
  const int64_t sketch_bytes =
      shape.sketched ? key_sketch_bytes(shape.head_dim, layout.capacity) : 0;
  KvArenaShape arena{.formats = {shape.format},
                     .head_dim = shape.head_dim,
                     .page_bytes = layout.page_bytes + sketch_bytes,
                     .slots = shape.sequences,
                     .layers = 1,
                     .kv_heads = shape.kv_heads,
                     .context = shape.context,
                     .token_scores = shape.token_scores,
                     .sketch_bytes = sketch_bytes};
  const int32_t shared_pages = shape.shared / arena.layout(0).capacity;
  const int64_t layer_pages =
      (int64_t{arena.slots} * (arena.row_pages() - shared_pages) + shared_pages) * arena.kv_heads;
  const int64_t layers = div_ceil(shape.at_least, layer_pages * arena.page_bytes);
  arena.layers = static_cast<int32_t>(std::max(
      shape.min_layers, shape.max_layers > 0 ? std::min(layers, shape.max_layers) : layers));
  arena.pages = static_cast<int32_t>(layer_pages * arena.layers);
  return arena;
}

}  // namespace

KvCopies::KvCopies(const KvCopiesShape& shape, const Device& device, std::string_view isa)
    : device_(device),
      arena_(KvArena::make(arena_shape(shape), device.backend(isa).memory, device.stream())) {
  if (arena_ == nullptr) {
    exit_with_error("the device has not enough memory; ask for less with --memory");
  }
  const Backend& backend = device.backend(isa);
  std::vector<KvGrowth> grown{{0, {}, arena_->shape().closed_tokens()}};
  std::vector<KvFork> forks;
  for (int32_t slot = 1; slot < shape.sequences; ++slot) {
    grown.push_back({slot, {}, arena_->shape().closed_tokens() - shape.shared});
    forks.push_back({0, slot, {}, shape.shared});
  }
  const auto grow = [&](std::span<const KvGrowth> growths) {
    backend.kv_resize({.pool = arena_->pool(), .released = {}, .grown = growths}, device.stream());
  };
  grow({grown.data(), 1});
  fill(backend);
  if (shape.sketched) {
    fill_sketches();
  }
  if (shape.shared > 0) {
    const KvRow whole{arena_->shape().closed_tokens(), 0};
    device.upload(view().rows,
                  std::vector<KvRow>(static_cast<size_t>(arena_->shape().slot_rows()), whole));
    backend.kv_fork({.pool = arena_->pool(), .forks = forks}, device.stream());
  }
  grow(std::span<const KvGrowth>(grown).subspan(1));
  set_contexts(std::vector<int32_t>(static_cast<size_t>(layers()), shape.context));
}

// Stores one group of random tokens with kv_store. Copies its first page to all other pages, and
// its residual buffer to all other residual buffers. The values do not matter, as long as they are
// typical in this format.
void KvCopies::fill(const Backend& backend) {
  const KvArenaShape& shape = arena_->shape();
  if (shape.closed_tokens() == 0) {
    exit_with_error("a context of less than a group");
  }
  const KvPagesView pages = view();
  const int64_t width = int64_t{pages.kv_heads} * pages.head_dim;
  const DeviceArray floats = on_device(device_, random_floats(2 * kKvGroup * width));
  const std::vector<SequenceSpan> spans{{0, 0, kKvGroup, 0, {}}};
  backend.kv_store({.keys = {floats.as<float>(), kKvGroup, width, width},
                    .values = {floats.as<float>() + kKvGroup * width, kKvGroup, width, width},
                    .sequences = spans,
                    .pages = pages,
                    .layer = 0,
                    .dense = {}},
                   device_.stream());
  const int32_t filled = host_view().table(0)[0];
  device_.repeat(pages.arena, shape.arena_bytes(),
                 device_.download(pages.page(filled), pages.page_bytes));
  device_.repeat(pages.residuals, shape.slots * shape.slot_residual_bytes(),
                 device_.download(pages.residual(0), pages.residual_layout.page_bytes));
  device_.repeat(reinterpret_cast<std::byte*>(pages.token_scores),
                 shape.slots * shape.slot_token_score_bytes(),
                 std::vector<std::byte>(sizeof(KvTokenScore)));
}

// Keeps the lowest bits of the mean, which are those of the steps.
void KvCopies::fill_sketches() {
  const KvPagesView pages = view();
  const KvPageLayout& layout = pages.layouts[0];
  const KeySketchLayout parts{layout.head_dim, layout.capacity};
  std::mt19937 random(1);
  for (int32_t page = 0; page < arena_->shape().pages; ++page) {
    std::byte* const sketch = key_sketch(layout, pages.page(page));
    for (int64_t i = 0; i < parts.bytes(); ++i) {
      const std::byte kept = i < parts.scales_offset() ? sketch[i] & std::byte{1} : std::byte{0};
      sketch[i] = kept | std::byte{static_cast<uint8_t>(random() & 0xfe)};
    }
  }
}

void KvCopies::set_contexts(const std::vector<int32_t>& of_layers) {
  std::vector<KvRow> rows;
  for (int32_t slot = 0; slot < arena_->shape().slots; ++slot) {
    for (const int32_t context : of_layers) {
      rows.insert(rows.end(), static_cast<size_t>(arena_->shape().kv_heads),
                  KvRow{context / kKvGroup * kKvGroup, 0});
    }
  }
  device_.upload(view().rows, rows);
}

DeviceArray KvCopies::dense(int64_t groups) const {
  const KvPagesView pages = view();
  const int64_t residual_bytes = pages.residual_layout.page_bytes;
  DeviceArray all(device_, groups * pages.kv_heads * residual_bytes);
  device_.repeat(all.as<std::byte>(), all.size(),
                 device_.download(pages.residual(0), residual_bytes));
  return all;
}

}  // namespace tessera::bench
