#include "kernels/kv_arena.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/check.h"

namespace tessera {
namespace {

void check_shape(const KvArenaShape& shape) {
  TESSERA_CHECK(shape.pages > 0 && shape.slots > 0 && shape.layers > 0 && shape.kv_heads > 0 &&
                    shape.context > 0 && shape.head_dim > 0,
                "an arena without pages or rows");
  TESSERA_CHECK(!shape.formats.empty() && std::ssize(shape.formats) <= kMaxKvLayouts,
                "an arena without a format, or with too many");
  TESSERA_CHECK(shape.page_bytes % KvPageLayout::kByteMultiple == 0, "an odd size of pages");
  for (size_t tier = 0; tier < shape.formats.size(); ++tier) {
    TESSERA_CHECK(is_supported(shape.formats[tier]), "a format without kernels");
    TESSERA_CHECK(shape.formats[tier] != kKvF32 || shape.formats.size() == 1,
                  "f32 beside other formats");
    TESSERA_CHECK(shape.layout(tier).capacity > 0, "a page that holds no tile of a format");
  }
  TESSERA_CHECK(
      shape.unit_tokens % kKvGroup == 0 && (shape.unit_tokens > 0) == !shape.unit_tiers.empty(),
      "units of other than whole groups, or of no format");
  for (const uint8_t tier : shape.unit_tiers) {
    TESSERA_CHECK(
        tier < shape.formats.size() && shape.unit_tokens % shape.layout(tier).capacity == 0,
        "units of other than whole pages");
  }
}

}  // namespace

int32_t KvArenaShape::row_pages() const {
  int32_t capacity = layout(0).capacity;
  for (size_t tier = 1; tier < formats.size(); ++tier) {
    capacity = std::min(capacity, layout(tier).capacity);
  }
  const int64_t pages_of_one_tier = div_ceil(closed_tokens(), capacity);
  return std::max(1, static_cast<int32_t>(pages_of_one_tier) + (formats.size() > 1 ? 1 : 0));
}

int32_t KvArenaShape::min_unit_pages() const {
  int32_t least = unit_tokens;
  for (const uint8_t tier : unit_tiers) {
    least = std::min(least, unit_tokens / layout(tier).capacity);
  }
  return least;
}

int32_t KvArenaShape::max_unit_pages() const {
  int32_t most = 0;
  for (const uint8_t tier : unit_tiers) {
    most = std::max(most, unit_tokens / layout(tier).capacity);
  }
  return most;
}

int32_t KvArenaShape::units() const {
  return unit_tokens == 0 ? 0 : static_cast<int32_t>(pages / (slot_rows() * min_unit_pages()));
}

int64_t KvArenaShape::slot_table_bytes() const {
  return slot_rows() * (row_pages() * int64_t{sizeof(int32_t)} + int64_t{sizeof(KvRow)});
}

int64_t KvArenaShape::slot_mark_bytes() const {
  return slot_rows() * row_marks() * int64_t{sizeof(KvMark)};
}

std::unique_ptr<KvArena> KvArena::make(const KvArenaShape& shape) {
  check_shape(shape);
  Memory memory{MemoryMapping(shape.arena_bytes()),
                MemoryMapping(shape.slots * shape.slot_window_bytes()),
                MemoryMapping(shape.slots * shape.slot_mark_bytes()),
                MemoryMapping(shape.slots * shape.slot_query_sum_bytes())};
  if (memory.arena.data() == nullptr || memory.windows.data() == nullptr ||
      (memory.marks.data() == nullptr && shape.slot_mark_bytes() > 0) ||
      (memory.query_sums.data() == nullptr && shape.slot_query_sum_bytes() > 0)) {
    return nullptr;
  }
  return std::unique_ptr<KvArena>(new KvArena(shape, std::move(memory)));
}

KvArena::KvArena(const KvArenaShape& shape, Memory memory)
    : shape_(shape),
      memory_(std::move(memory)),
      tables_(static_cast<size_t>(shape.rows() * shape.row_pages()), kNoPage),
      rows_(static_cast<size_t>(shape.rows())),
      unit_tables_(static_cast<size_t>(shape.units() * shape.slot_rows() * shape.max_unit_pages()),
                   kNoPage),
      owners_(static_cast<size_t>(shape.pages)),
      free_list_(static_cast<size_t>(shape.pages)),
      free_range_{0, shape.pages} {
  std::iota(free_list_.begin(), free_list_.end(), 0);
}

KvPool KvArena::pool() {
  return {.pages = view(),
          .tables = tables_.data(),
          .owners = owners_.data(),
          .slots = shape_.slots,
          .free_list = free_list_.data(),
          .page_count = shape_.pages,
          .free_range = &free_range_,
          .unit_tables = unit_tables_.data(),
          .units = shape_.units(),
          .unit_pages = shape_.max_unit_pages(),
          .unit_tokens = shape_.unit_tokens};
}

KvPagesView KvArena::view() const {
  KvPagesView view;
  view.arena = memory_.arena.data();
  view.page_bytes = shape_.page_bytes;
  for (size_t tier = 0; tier < shape_.formats.size(); ++tier) {
    view.layouts[tier] = shape_.layout(tier);
  }
  view.tables = tables_.data();
  view.rows = const_cast<KvRow*>(rows_.data());
  view.windows = memory_.windows.data();
  view.window_layout = shape_.window_layout();
  view.marks = reinterpret_cast<KvMark*>(memory_.marks.data());
  view.row_marks = shape_.row_marks();
  view.query_sums = reinterpret_cast<float*>(memory_.query_sums.data());
  view.layers = shape_.layers;
  view.kv_heads = shape_.kv_heads;
  view.row_pages = shape_.row_pages();
  view.head_dim = shape_.head_dim;
  return view;
}

int64_t KvArena::slot_pages(int32_t slot) const {
  TESSERA_CHECK(slot >= 0 && slot < shape_.slots, "no such slot");
  const int64_t entries = shape_.slot_rows() * shape_.row_pages();
  const auto first = tables_.begin() + slot * entries;
  return entries - std::count(first, first + entries, kNoPage);
}

int64_t KvArena::unit_pages(int32_t handle) const {
  TESSERA_CHECK(handle >= 0 && handle < shape_.units(), "no such unit");
  const int64_t entries = shape_.slot_rows() * shape_.max_unit_pages();
  const auto first = unit_tables_.begin() + handle * entries;
  return entries - std::count(first, first + entries, kNoPage);
}

void KvArena::check_integrity() const {
  std::vector<int32_t> held(static_cast<size_t>(shape_.pages), 0);
  for (const int32_t id : unit_tables_) {
    TESSERA_CHECK(id >= kNoPage && id < shape_.pages, "a page id outside the arena");
    if (id != kNoPage) {
      ++held[static_cast<size_t>(id)];
    }
  }
  const auto row_pages = shape_.row_pages();
  for (int64_t row = 0; row < shape_.rows(); ++row) {
    const auto first = tables_.begin() + row * row_pages;
    const auto last = first + row_pages;
    const auto gap = std::find(first, last, kNoPage);
    const auto gap_end = std::find_if(gap, last, [](int32_t id) { return id != kNoPage; });
    TESSERA_CHECK(std::find(gap_end, last, kNoPage) == last, "a row of pages has two gaps");
    const KvRow& counts = rows_[static_cast<size_t>(row)];
    TESSERA_CHECK(counts.high >= 0 && (counts.high == 0 || first != gap), "high tokens nowhere");
    TESSERA_CHECK(counts.low >= 0 && (counts.low == 0 || *(last - 1) != kNoPage),
                  "low tokens nowhere");
    for (auto entry = first; entry != last; ++entry) {
      TESSERA_CHECK(*entry >= kNoPage && *entry < shape_.pages, "a page id outside the arena");
      if (*entry != kNoPage) {
        ++held[static_cast<size_t>(*entry)];
      }
    }
  }
  TESSERA_CHECK(free_range_.head >= 0 && free_range_.head < shape_.pages, "the free list's head");
  std::vector<bool> is_free(static_cast<size_t>(shape_.pages), false);
  for (int64_t i = 0; i < free_range_.count; ++i) {
    const int32_t id = free_list_[static_cast<size_t>((free_range_.head + i) % shape_.pages)];
    TESSERA_CHECK(id >= 0 && id < shape_.pages, "a free page id outside the arena");
    TESSERA_CHECK(!is_free[static_cast<size_t>(id)], "a page is free twice");
    is_free[static_cast<size_t>(id)] = true;
  }
  for (size_t id = 0; id < held.size(); ++id) {
    TESSERA_CHECK(held[id] == owners_[id], "a page's owners are not those that hold it");
    TESSERA_CHECK(is_free[id] == (held[id] == 0), "a page is lost, or free and held");
  }
}

}  // namespace tessera
