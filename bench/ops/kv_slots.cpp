#include "bench/ops/kv_slots.h"

#include <algorithm>

#include "bench/cycled_memory.h"

namespace tessera::bench {

int32_t KvSlots::count(const Setup& setup, int64_t bytes) {
  return static_cast<int32_t>(
      setup.as_in_model ? 2 : std::max<int64_t>(2, div_ceil(setup.memory_bytes, bytes)));
}

KvSlots::KvSlots(KvArenaShape shape, const Setup& setup)
    : device_(*setup.device), backend_(device_.backend(setup.isas[0])) {
  if (shape.pages == 0) {
    shape.pages = static_cast<int32_t>(shape.rows() * shape.row_pages() + shape.slot_rows());
  }
  arena_ = KvArena::make(shape, backend_.memory, stream());
  if (arena_ == nullptr) {
    exit_with_error("the device has not enough memory; ask for less with --memory");
  }
  device_.repeat(arena_->view().residuals, shape.slots * shape.slot_residual_bytes(),
                 std::vector{std::byte{1}});
  usual_page_ = usual_page();
}

// Returns: a page of random tokens as kv_store encodes it.
std::vector<std::byte> KvSlots::usual_page() {
  const KvPagesView pages = arena_->view();
  const auto tokens = static_cast<int32_t>(round_up(pages.layouts[0].capacity, kKvGroup));
  const int64_t width = int64_t{pages.kv_heads} * pages.head_dim;
  const DeviceArray floats = on_device(device_, random_floats(2 * tokens * width));
  const std::vector<SequenceSpan> spans{{0, 0, tokens, 0, {}}};
  const std::vector<KvGrowth> grown{{0, {}, tokens}};
  const DeviceArray dense(
      device_, dense_groups(spans[0]) * pages.kv_heads * pages.residual_layout.page_bytes);
  backend_.kv_resize({.pool = arena_->pool(), .released = {}, .grown = grown}, stream());
  backend_.kv_store({.keys = {floats.as<float>(), tokens, width, width},
                     .values = {floats.as<float>() + tokens * width, tokens, width, width},
                     .sequences = spans,
                     .pages = pages,
                     .layer = 0,
                     .dense = dense.span()},
                    stream());
  const int32_t first = arena_->host_pool().pages.table(0)[0];
  std::vector<std::byte> page = device_.download(pages.page(first), pages.page_bytes);
  release(std::vector<int32_t>{0});
  return page;
}

void KvSlots::append(int32_t slot, KvTiers tiers, int32_t tokens) {
  const std::vector<KvGrowth> grown{{slot, tiers, tokens}};
  backend_.kv_resize({.pool = arena_->pool(), .released = {}, .grown = grown}, stream());
  const KvPagesView pages = arena_->view();
  const KvPagesView seen = arena_->host_pool().pages;
  const int64_t first = pages.row_index(slot, 0, 0);
  std::vector<KvRow> rows(seen.rows + first, seen.rows + first + arena_->shape().slot_rows());
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].high += tokens;
    const int64_t used = div_ceil(rows[i].high, pages.layouts[tiers.high].capacity);
    for (int64_t entry = 0; entry < used; ++entry) {
      device_.upload(pages.page(seen.table(first + static_cast<int64_t>(i))[entry]), usual_page_);
    }
  }
  device_.upload(pages.rows + first, rows);
}

std::vector<std::byte> KvSlots::save(int32_t slot, KvTiers tiers, int32_t tokens) {
  const int64_t bytes = kv_snapshot_bytes(arena_->view(), arena_->slot_pages(slot), tokens);
  std::vector<std::byte> snapshot(static_cast<size_t>(bytes));
  backend_.kv_swap_out({arena_->pool(), {slot, tiers, tokens}, snapshot}, stream());
  return snapshot;
}

void KvSlots::load(int32_t slot, KvTiers tiers, int32_t tokens, std::vector<std::byte>& snapshot) {
  backend_.kv_swap_in({arena_->pool(), {slot, tiers, tokens}, snapshot}, stream());
}

void KvSlots::release(std::span<const int32_t> slots) {
  backend_.kv_resize({.pool = arena_->pool(), .released = slots, .grown = {}}, stream());
}

}  // namespace tessera::bench
