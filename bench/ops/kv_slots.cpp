#include "bench/ops/kv_slots.h"

#include <algorithm>
#include <cstring>

#include "bench/cycled_memory.h"

namespace tessera::bench {

int32_t KvSlots::count(const Setup& setup, int64_t bytes) {
  return static_cast<int32_t>(
      setup.as_in_model ? 2 : std::max<int64_t>(2, div_ceil(setup.memory_bytes, bytes)));
}

KvSlots::KvSlots(KvArenaShape shape, const Setup& setup)
    : backend_(setup.device->backend(setup.isas[0])), stream_(setup.device->stream()) {
  if (shape.pages == 0) {
    shape.pages = static_cast<int32_t>(shape.rows() * shape.row_pages() + shape.slot_rows());
  }
  arena_ = KvArena::make(shape);
  if (arena_ == nullptr) {
    give_up("the system has not enough memory; ask for less with --memory");
  }
  std::fill_n(arena_->view().windows, shape.slots * shape.slot_window_bytes(), std::byte{1});
  usual_page_ = usual_page();
}

// The first page of random tokens, as the op stores them.
std::vector<std::byte> KvSlots::usual_page() {
  const KvPagesView pages = arena_->view();
  const auto tokens = static_cast<int32_t>(round_up(pages.layouts[0].capacity, kKvGroup));
  const int64_t width = int64_t{pages.kv_heads} * pages.head_dim;
  const std::vector<float> floats = random_floats(2 * tokens * width);
  const std::vector<SequenceSpan> spans{{0, 0, tokens, 0, {}}};
  const std::vector<KvGrowth> grown{{0, {}, tokens}};
  std::vector<std::byte> dense(static_cast<size_t>(dense_groups(spans[0]) * pages.kv_heads *
                                                   pages.window_layout.page_bytes));
  backend_.kv_resize({.pool = arena_->pool(), .released = {}, .grown = grown}, stream_);
  backend_.kv_store({.keys = {floats.data(), tokens, width, width},
                     .values = {floats.data() + tokens * width, tokens, width, width},
                     .sequences = spans,
                     .pages = pages,
                     .layer = 0,
                     .dense = dense},
                    stream_);
  const std::byte* first = pages.page(pages.table(0)[0]);
  std::vector<std::byte> page(first, first + pages.page_bytes);
  const std::vector<int32_t> slots{0};
  release(slots);
  return page;
}

void KvSlots::append(int32_t slot, KvTiers tiers, int32_t tokens) {
  const KvPagesView pages = arena_->view();
  const std::vector<KvGrowth> grown{{slot, tiers, tokens}};
  backend_.kv_resize({.pool = arena_->pool(), .released = {}, .grown = grown}, stream_);
  const int64_t first = pages.row_index(slot, 0, 0);
  for (int64_t row = first; row < first + arena_->shape().slot_rows(); ++row) {
    pages.rows[row].high += tokens;
    const int64_t used = div_ceil(pages.rows[row].high, pages.layouts[tiers.high].capacity);
    for (int64_t i = 0; i < used; ++i) {
      std::memcpy(pages.page(pages.table(row)[i]), usual_page_.data(), usual_page_.size());
    }
  }
}

void KvSlots::release(std::span<const int32_t> slots) {
  backend_.kv_resize({.pool = arena_->pool(), .released = slots, .grown = {}}, stream_);
}

}  // namespace tessera::bench
