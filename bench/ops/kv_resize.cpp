#include <algorithm>
#include <memory>
#include <numeric>

#include "bench/cycled_memory.h"
#include "bench/ops/ops.h"

namespace tessera::bench {
namespace {

constexpr int32_t kRowPages = 32;  // 2048 tokens in pages of 64

struct ResizeCase {
  int32_t slots = 1;  // changed by one call
  int32_t pages = 1;  // given to each of their rows
};

// Page tables, a free list and owners alone: the op moves ids and never looks at a page. All slots
// grow in turn until all are full, and are then emptied in turn.
class Tables {
 public:
  Tables(const ResizeCase& size, const Setup& setup, const Shape& shape)
      : size_(size),
        slot_rows_(int64_t{shape.layers} * shape.kv_heads),
        groups_(groups_of(setup)),
        tables_(ids() * int64_t{sizeof(int32_t)}),
        free_list_(ids() * int64_t{sizeof(int32_t)}),
        owners_(ids() * int64_t{sizeof(uint16_t)}),
        rows_(static_cast<size_t>(groups_ * size.slots * slot_rows_)),
        free_range_{0, ids()},
        released_(static_cast<size_t>(size.slots)),
        grown_(static_cast<size_t>(size.slots)) {
    int32_t* const table_ids = reinterpret_cast<int32_t*>(tables_.span().data());
    int32_t* const free_ids = reinterpret_cast<int32_t*>(free_list_.span().data());
    std::fill_n(table_ids, ids(), kNoPage);
    std::iota(free_ids, free_ids + ids(), 0);
    pool_.pages.tables = table_ids;
    pool_.pages.rows = rows_.data();
    pool_.pages.layouts[0] = KvPageLayout::make(kKvF16, shape.head_dim, kKvGroup);
    pool_.pages.layers = shape.layers;
    pool_.pages.kv_heads = shape.kv_heads;
    pool_.pages.row_pages = kRowPages;
    pool_.tables = table_ids;
    pool_.owners = reinterpret_cast<uint16_t*>(owners_.span().data());
    pool_.slots = static_cast<int32_t>(groups_ * size.slots);
    pool_.free_list = free_ids;
    pool_.page_count = static_cast<int32_t>(ids());
    pool_.free_range = &free_range_;
  }

  int64_t cycled_bytes() const {
    return 2 * std::ssize(tables_.span()) + std::ssize(owners_.span());
  }

  KvResizeArgs next() {
    const int32_t steps = kRowPages / size_.pages;
    const auto group = static_cast<int32_t>(call_ % groups_);
    const auto step = static_cast<int32_t>(call_ / groups_ % (steps + 1));
    ++call_;
    const int32_t first = group * size_.slots;
    if (step == steps) {
      std::iota(released_.begin(), released_.end(), first);
      return {.pool = pool_, .released = released_, .grown = {}};
    }
    // The rows are as full as the steps before left them.
    std::fill_n(rows_.begin() + first * slot_rows_, size_.slots * slot_rows_,
                KvRow{step * size_.pages * kKvGroup, 0});
    for (int32_t i = 0; i < size_.slots; ++i) {
      grown_[static_cast<size_t>(i)] = {first + i, {}, size_.pages * kKvGroup};
    }
    return {.pool = pool_, .released = {}, .grown = grown_};
  }

 private:
  int64_t slot_ids() const { return slot_rows_ * kRowPages; }
  int64_t ids() const { return groups_ * size_.slots * slot_ids(); }
  int64_t groups_of(const Setup& setup) const {
    const int64_t group_bytes =
        size_.slots * slot_ids() * int64_t{2 * sizeof(int32_t) + sizeof(uint16_t)};
    return setup.as_in_model ? 2 : std::max<int64_t>(2, div_ceil(setup.memory_bytes, group_bytes));
  }

  ResizeCase size_;
  int64_t slot_rows_;
  int64_t groups_;  // of slots that one call changes
  int64_t call_ = 0;
  MappedMemory tables_;
  MappedMemory free_list_;
  MappedMemory owners_;
  std::vector<KvRow> rows_;
  KvFreeRange free_range_;
  KvPool pool_;
  std::vector<int32_t> released_;
  std::vector<KvGrowth> grown_;
};

std::vector<Variant> prepare(const ResizeCase& size, const Setup& setup, const Shape& shape) {
  const auto tables = std::make_shared<Tables>(size, setup, shape);
  // Calls build on each other, so the first is made, not only looked at. It grows rows; to empty
  // them costs a little more for each page.
  const KvResizeArgs first = tables->next();
  const OpCost cost = op_cost(first);
  setup.device->backend(setup.isas[0]).kv_resize(first, setup.device->stream());
  std::vector<Variant> variants;
  for (const std::string_view isa : setup.isas) {
    const Backend& backend = setup.device->backend(isa);
    variants.push_back({.format = "-",
                        .isa = std::string(isa),
                        .peer = {},
                        .cost = cost,
                        .cycled_bytes = tables->cycled_bytes(),
                        .call = [tables, &backend, stream = setup.device->stream()] {
                          backend.kv_resize(tables->next(), stream);
                        }});
  }
  return variants;
}

std::vector<Case> cases(const Setup& setup, const Shape& shape) {
  std::vector<Case> all;
  for (const ResizeCase& size : {ResizeCase{1, kRowPages}, ResizeCase{8, 1}}) {
    all.push_back({.label = "slots " + std::to_string(size.slots) + " pages " +
                            std::to_string(size.pages) + " rows " +
                            std::to_string(shape.layers * shape.kv_heads),
                   .parameters = {{"slots", size.slots},
                                  {"pages", size.pages},
                                  {"rows", shape.layers * shape.kv_heads}},
                   .prepare = [=, &setup] { return prepare(size, setup, shape); }});
  }
  return all;
}

}  // namespace

Op kv_resize_op() {
  return {"kv_resize", "pages given to slots, and taken back", cases};
}

}  // namespace tessera::bench
