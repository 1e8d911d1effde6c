#include "kernels/kv/kv_arena.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"

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
    TESSERA_CHECK(!shape.coded_residuals || shape.formats[tier].is_codes(),
                  "coded residual buffers beside a format that is not of codes");
    TESSERA_CHECK(shape.layout(tier).capacity > 0, "a page that holds no tile of a format");
  }
  TESSERA_CHECK(shape.prefix_block_tokens % kKvGroup == 0 &&
                    (shape.prefix_block_tokens > 0) == !shape.prefix_block_tiers.empty(),
                "prefix blocks that are not whole groups, or without a format");
  TESSERA_CHECK(
      shape.head_profiles.empty() || (std::ssize(shape.head_profiles) % shape.slot_rows() == 0 &&
                                      shape.rank < shape.profiled_ranks()),
      "profiles of other rows");
  TESSERA_CHECK(shape.windows.empty() || std::ssize(shape.windows) == shape.layers,
                "windows of other layers");
  for (const int32_t window : shape.windows) {
    TESSERA_CHECK(window == 0 || window == shape.window(), "windows of several lengths");
  }
  for (const uint8_t tier : shape.prefix_block_tiers) {
    TESSERA_CHECK(
        tier < shape.formats.size() && shape.prefix_block_tokens % shape.layout(tier).capacity == 0,
        "prefix blocks that are not whole pages");
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

int32_t KvArenaShape::window() const {
  return windows.empty() ? 0 : *std::max_element(windows.begin(), windows.end());
}

int64_t KvArenaShape::windowed_rows() const {
  return std::count_if(windows.begin(), windows.end(), [](int32_t window) { return window > 0; }) *
         kv_heads;
}

int32_t KvArenaShape::min_prefix_block_pages() const {
  int32_t min = prefix_block_tokens;
  for (const uint8_t tier : prefix_block_tiers) {
    const int32_t tokens = has_short_blocks(tier) ? short_block_tokens : prefix_block_tokens;
    min = std::min(min, tokens / layout(tier).capacity);
  }
  for (const KvSectionBlock& block : section_blocks) {
    min = std::min(min, block.row_pages);
  }
  return min;
}

int32_t KvArenaShape::max_prefix_block_pages() const {
  int32_t max = 0;
  for (const uint8_t tier : prefix_block_tiers) {
    max = std::max(max, prefix_block_tokens / layout(tier).capacity);
  }
  return max;
}

int32_t KvArenaShape::prefix_blocks() const {
  return prefix_block_tokens == 0 ? 0 : static_cast<int32_t>(pages / least_pages_of_prefix_block());
}

int64_t KvArenaShape::slot_table_bytes() const {
  return slot_rows() * (row_pages() * int64_t{sizeof(int32_t)} + int64_t{sizeof(KvRow)});
}

int64_t KvArenaShape::slot_token_score_bytes() const {
  return slot_rows() * row_token_scores() * int64_t{sizeof(KvTokenScore)};
}

namespace {

// Cuts one allocation into parts, each at a multiple of 256 bytes, as pages require.
class Cutter {
 public:
  explicit Cutter(std::byte* memory) : memory_(memory) {}
  template <class T>
  void cut(int64_t count, T*& part) {
    part = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + used_);
    used_ += round_up(count * int64_t{sizeof(T)}, 256);
  }
  int64_t used() const { return used_; }

 private:
  std::byte* memory_;
  int64_t used_ = 0;
};

int64_t device_bytes(const KvArenaShape& shape) {
  constexpr int64_t kParts = 12;
  return shape.total_bytes() + shape.slot_rows() * int64_t{sizeof(HeadProfile)} +
         std::ssize(shape.windows) * int64_t{sizeof(int32_t)} + kParts * 256;
}

}  // namespace

std::unique_ptr<KvArena> KvArena::make(const KvArenaShape& shape, const DeviceMemory* memory,
                                       Stream stream) {
  check_shape(shape);
  if (memory != nullptr) {
    Memory on_device{.arena = {},
                     .residuals = {},
                     .token_scores = {},
                     .query_sums = {},
                     .device = allocate(*memory, device_bytes(shape))};
    if (on_device.device == nullptr) {
      return nullptr;
    }
    std::unique_ptr<KvArena> arena(new KvArena(shape, std::move(on_device)));
    arena->stream_ = stream;
    arena->place_on_device();
    return arena;
  }
  Memory on_host{MemoryMapping(shape.arena_bytes()),
                 MemoryMapping(shape.slots * shape.slot_residual_bytes()),
                 MemoryMapping(shape.slots * shape.slot_token_score_bytes()),
                 MemoryMapping(shape.slots * shape.slot_query_sum_bytes())};
  if (on_host.arena.data() == nullptr || on_host.residuals.data() == nullptr ||
      (on_host.token_scores.data() == nullptr && shape.slot_token_score_bytes() > 0) ||
      (on_host.query_sums.data() == nullptr && shape.slot_query_sum_bytes() > 0)) {
    return nullptr;
  }
  return std::unique_ptr<KvArena>(new KvArena(shape, std::move(on_host)));
}

KvArena::KvArena(const KvArenaShape& shape, Memory memory)
    : shape_(shape),
      memory_(std::move(memory)),
      arena_(memory_.arena.data()),
      residuals_(memory_.residuals.data()),
      token_scores_(reinterpret_cast<KvTokenScore*>(memory_.token_scores.data())),
      query_sums_(reinterpret_cast<float*>(memory_.query_sums.data())) {
  const auto fill = [](auto& numbers, int64_t count, auto first) {
    numbers.host.resize(static_cast<size_t>(count), first);
    numbers.data = numbers.host.data();
  };
  fill(tables_, shape.rows() * shape.row_pages(), kNoPage);
  fill(rows_, shape.rows(), KvRow{});
  fill(prefix_block_tables_,
       shape.prefix_blocks() * shape.slot_rows() * shape.max_prefix_block_pages(), kNoPage);
  fill(owners_, shape.pages, uint16_t{0});
  fill(free_list_, shape.pages, 0);
  fill(free_range_, 1, KvFreeRange{0, shape.pages});
  if (!shape.head_profiles.empty()) {
    for (int64_t row = 0; row < shape.slot_rows(); ++row) {
      head_profiles_.host.push_back(shape.head_profile(shape.rank, row));
    }
    head_profiles_.data = head_profiles_.host.data();
  }
  if (shape.windowed_rows() > 0) {
    windows_.host = shape.windows;
    windows_.data = windows_.host.data();
  }
  std::iota(free_list_.host.begin(), free_list_.host.end(), 0);
}

bool KvArena::populate() {
  return memory_.arena.populate() && memory_.residuals.populate() &&
         memory_.token_scores.populate() && memory_.query_sums.populate();
}

void KvArena::place_on_device() {
  const DeviceMemory& device = *memory_.device.get_deleter().memory;
  Cutter cutter(memory_.device.get());
  cutter.cut(shape_.arena_bytes(), arena_);
  cutter.cut(shape_.slots * shape_.slot_residual_bytes(), residuals_);
  if (shape_.token_scores) {
    cutter.cut(int64_t{shape_.slots} * shape_.slot_rows() * shape_.row_token_scores(),
               token_scores_);
  }
  if (shape_.query_sums) {
    cutter.cut(shape_.slots * shape_.slot_query_sum_bytes() / int64_t{sizeof(float)}, query_sums_);
  }
  const auto place = [&](auto& numbers) {
    const auto count = std::ssize(numbers.host);
    cutter.cut(count, numbers.data);
    device.upload(numbers.data, numbers.host.data(),
                  count * static_cast<int64_t>(sizeof(*numbers.data)));
  };
  place(tables_);
  place(rows_);
  place(prefix_block_tables_);
  place(owners_);
  place(free_list_);
  place(free_range_);
  if (head_profiles_.data != nullptr) {
    place(head_profiles_);
  }
  if (windows_.data != nullptr) {
    place(windows_);
  }
  TESSERA_CHECK(cutter.used() <= device_bytes(shape_), "an arena larger than its shape says");
}

KvPool KvArena::pool() {
  return {.pages = view(),
          .tables = tables_.data,
          .owners = owners_.data,
          .slots = shape_.slots,
          .free_list = free_list_.data,
          .page_count = shape_.pages,
          .free_range = free_range_.data,
          .prefix_block_tables = prefix_block_tables_.data,
          .prefix_blocks = shape_.prefix_blocks(),
          .prefix_block_pages = shape_.max_prefix_block_pages(),
          .prefix_block_tokens = shape_.prefix_block_tokens,
          .head_profiles = head_profiles_.data,
          .windows = windows_.data};
}

KvPool KvArena::host_pool() {
  const auto host = [this](auto& numbers) {
    read(numbers);
    return numbers.host.data();
  };
  KvPool seen = pool();
  seen.tables = host(tables_);
  seen.pages.tables = seen.tables;
  seen.pages.rows = host(rows_);
  seen.prefix_block_tables = host(prefix_block_tables_);
  seen.owners = host(owners_);
  seen.free_list = host(free_list_);
  seen.free_range = host(free_range_);
  if (seen.head_profiles != nullptr) {
    seen.head_profiles = head_profiles_.host.data();  // never changed
  }
  if (seen.windows != nullptr) {
    seen.windows = windows_.host.data();  // never changed
  }
  return seen;
}

KvPagesView KvArena::view() const {
  KvPagesView view;
  view.arena = arena_;
  view.page_bytes = shape_.page_bytes;
  for (size_t tier = 0; tier < shape_.formats.size(); ++tier) {
    view.layouts[tier] = shape_.layout(tier);
  }
  view.tables = tables_.data;
  view.rows = rows_.data;
  view.residuals = residuals_;
  view.residual_layout = shape_.residual_layout();
  view.token_scores = token_scores_;
  view.row_token_scores = shape_.row_token_scores();
  view.section_scores = shape_.section_scores;
  view.query_sums = query_sums_;
  view.layers = shape_.layers;
  view.kv_heads = shape_.kv_heads;
  view.row_pages = shape_.row_pages();
  view.head_dim = shape_.head_dim;
  return view;
}

template <class T>
std::span<const T> KvArena::read(const Numbers<T>& numbers, int64_t first, int64_t count) const {
  T* host = numbers.host.data() + first;
  if (memory_.device != nullptr) {
    memory_.device.get_deleter().memory->download(host, numbers.data + first,
                                                  count * int64_t{sizeof(T)}, stream_);
  }
  return {host, static_cast<size_t>(count)};
}

template <class T>
std::span<const T> KvArena::read(const Numbers<T>& numbers) const {
  return read(numbers, 0, std::ssize(numbers.host));
}

void KvArena::wait() const {
  if (memory_.device != nullptr) {
    memory_.device.get_deleter().memory->wait(stream_);
  }
}

int64_t KvArena::free_pages() const {
  return read(free_range_)[0].count;
}

std::span<const KvRow> KvArena::slot_rows(int32_t slot) const {
  TESSERA_CHECK(slot >= 0 && slot < shape_.slots, "no such slot");
  return read(rows_, slot * shape_.slot_rows(), shape_.slot_rows());
}

int64_t KvArena::slot_pages(int32_t slot) const {
  TESSERA_CHECK(slot >= 0 && slot < shape_.slots, "no such slot");
  const int64_t entries = shape_.slot_rows() * shape_.row_pages();
  const std::span<const int32_t> table = read(tables_, slot * entries, entries);
  return entries - std::count(table.begin(), table.end(), kNoPage);
}

int64_t KvArena::prefix_block_pages(int32_t handle) const {
  TESSERA_CHECK(handle >= 0 && handle < shape_.prefix_blocks(), "no such prefix block");
  const int64_t entries = shape_.slot_rows() * shape_.max_prefix_block_pages();
  const std::span<const int32_t> table = read(prefix_block_tables_, handle * entries, entries);
  return entries - std::count(table.begin(), table.end(), kNoPage);
}

bool KvArena::is_sole_owner(int32_t handle) const {
  TESSERA_CHECK(handle >= 0 && handle < shape_.prefix_blocks(), "no such prefix block");
  const int64_t entries = shape_.slot_rows() * shape_.max_prefix_block_pages();
  const std::span<const int32_t> table = read(prefix_block_tables_, handle * entries, entries);
  const std::span<const uint16_t> owners = read(owners_);
  return std::all_of(table.begin(), table.end(), [&](int32_t page) {
    return page == kNoPage || owners[static_cast<size_t>(page)] == 1;
  });
}

void KvArena::check_integrity() const {
  std::vector<int32_t> held(static_cast<size_t>(shape_.pages), 0);
  for (const int32_t id : read(prefix_block_tables_)) {
    TESSERA_CHECK(id >= kNoPage && id < shape_.pages, "a page id outside the arena");
    if (id != kNoPage) {
      ++held[static_cast<size_t>(id)];
    }
  }
  const std::span<const int32_t> tables = read(tables_);
  const std::span<const KvRow> rows = read(rows_);
  const std::span<const uint16_t> owners = read(owners_);
  const std::span<const int32_t> free_list = read(free_list_);
  const KvFreeRange free_range = read(free_range_)[0];
  const auto row_pages = shape_.row_pages();
  for (int64_t row = 0; row < shape_.rows(); ++row) {
    const auto begin = tables.begin() + row * row_pages;
    const auto last = begin + row_pages;
    const bool windowed =
        !shape_.windows.empty() &&
        shape_.windows[static_cast<size_t>(row % shape_.slot_rows() / shape_.kv_heads)] > 0;
    const auto is_page = [](int32_t id) { return id != kNoPage; };
    const auto first = windowed ? std::find_if(begin, last, is_page) : begin;
    const auto gap = std::find(first, last, kNoPage);
    const auto gap_end = std::find_if(gap, last, is_page);
    TESSERA_CHECK(std::find(gap_end, last, kNoPage) == last, "a row of pages has two gaps");
    const KvRow& counts = rows[static_cast<size_t>(row)];
    TESSERA_CHECK(counts.high >= 0 && (counts.high == 0 || first != gap || windowed),
                  "no high-tier page");
    TESSERA_CHECK(counts.low >= 0 && (counts.low == 0 || (*(last - 1) != kNoPage && !windowed)),
                  "no low-tier page, or one in a layer with a window");
    for (auto entry = begin; entry != last; ++entry) {
      TESSERA_CHECK(*entry >= kNoPage && *entry < shape_.pages, "a page id outside the arena");
      if (*entry != kNoPage) {
        ++held[static_cast<size_t>(*entry)];
      }
    }
  }
  TESSERA_CHECK(free_range.head >= 0 && free_range.head < shape_.pages, "the free list's head");
  std::vector<bool> is_free(static_cast<size_t>(shape_.pages), false);
  for (int64_t i = 0; i < free_range.count; ++i) {
    const int32_t id = free_list[static_cast<size_t>((free_range.head + i) % shape_.pages)];
    TESSERA_CHECK(id >= 0 && id < shape_.pages, "a free page id outside the arena");
    TESSERA_CHECK(!is_free[static_cast<size_t>(id)], "a page is free twice");
    is_free[static_cast<size_t>(id)] = true;
  }
  for (size_t id = 0; id < held.size(); ++id) {
    TESSERA_CHECK(held[id] == owners[id], "a page's owners are not those that hold it");
    TESSERA_CHECK(is_free[id] == (held[id] == 0), "a page is lost, or free and held");
  }
}

}  // namespace tessera
