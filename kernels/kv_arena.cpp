#include "kernels/kv_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <numeric>

#include "kernels/check.h"

namespace tessera {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

std::unique_ptr<KvArena> KvArena::make(const KvArenaShape& shape) {
  TESSERA_CHECK(shape.pages > 0 && shape.slots > 0 && shape.layers > 0 && shape.kv_heads > 0 &&
                    shape.context > 0 && shape.layout.capacity > 0,
                "an arena without pages or rows");
  const size_t bytes = static_cast<size_t>(shape.arena_bytes()) + kHugePage;
  void* mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    return nullptr;
  }
  const uintptr_t start = reinterpret_cast<uintptr_t>(mapping);
  const size_t skipped = (kHugePage - start % kHugePage) % kHugePage;
  std::byte* arena = static_cast<std::byte*>(mapping) + skipped;
  madvise(arena, bytes - kHugePage, MADV_HUGEPAGE);  // a wish: without them it is a little slower
  return std::unique_ptr<KvArena>(
      new KvArena(shape, static_cast<std::byte*>(mapping), arena, bytes));
}

KvArena::KvArena(const KvArenaShape& shape, std::byte* mapping, std::byte* arena,
                 size_t mapped_bytes)
    : shape_(shape),
      mapping_(mapping),
      arena_(arena),
      mapped_bytes_(mapped_bytes),
      tables_(static_cast<size_t>(shape.slots * slot_rows() * shape.row_pages()), kNoPage),
      free_list_(static_cast<size_t>(shape.pages)),
      owners_(static_cast<size_t>(shape.pages), 0),
      free_range_{0, shape.pages} {
  std::iota(free_list_.begin(), free_list_.end(), 0);
}

KvArena::~KvArena() {
  munmap(mapping_, mapped_bytes_);
}

KvPool KvArena::pool() {
  return {.tables = tables_.data(),
          .slots = shape_.slots,
          .layers = shape_.layers,
          .kv_heads = shape_.kv_heads,
          .row_pages = shape_.row_pages(),
          .free_list = free_list_.data(),
          .pages = shape_.pages,
          .free_range = &free_range_,
          .owners = owners_.data()};
}

KvPagesView KvArena::view() const {
  return {.arena = arena_,
          .tables = tables_.data(),
          .layout = shape_.layout,
          .layers = shape_.layers,
          .kv_heads = shape_.kv_heads,
          .row_pages = shape_.row_pages()};
}

int64_t KvArena::slot_pages(int32_t slot) const {
  TESSERA_CHECK(slot >= 0 && slot < shape_.slots, "no such slot");
  const int64_t entries = slot_rows() * shape_.row_pages();
  const auto first = tables_.begin() + slot * entries;
  return entries - std::count(first, first + entries, kNoPage);
}

void KvArena::check_integrity() const {
  std::vector<int32_t> entries(static_cast<size_t>(shape_.pages), 0);
  std::vector<int64_t> rows(static_cast<size_t>(shape_.pages), 0);  // within a slot
  const auto see = [&](int32_t page_id) {
    TESSERA_CHECK(page_id >= 0 && page_id < shape_.pages, "a page id outside the arena");
    return static_cast<size_t>(page_id);
  };
  const auto row_pages = shape_.row_pages();
  int64_t row_number = 0;
  for (auto row = tables_.begin(); row != tables_.end(); row += row_pages, ++row_number) {
    const auto row_end = std::find(row, row + row_pages, kNoPage);
    TESSERA_CHECK(std::count(row_end, row + row_pages, kNoPage) == row + row_pages - row_end,
                  "a row of pages has a hole");
    for (auto entry = row; entry != row_end; ++entry) {
      const size_t page = see(*entry);
      const int64_t row_in_slot = row_number % slot_rows();
      TESSERA_CHECK(entries[page] == 0 || rows[page] == row_in_slot,
                    "a page stands in rows of two heads");
      rows[page] = row_in_slot;
      ++entries[page];
    }
  }
  TESSERA_CHECK(entries == owners_, "a page has other owners than entries");
  TESSERA_CHECK(free_range_.head >= 0 && free_range_.head < shape_.pages, "the free list's head");
  TESSERA_CHECK(std::count(owners_.begin(), owners_.end(), 0) == free_range_.count,
                "pages are missing");
  for (int64_t i = 0; i < free_range_.count; ++i) {
    const size_t page = see(free_list_[static_cast<size_t>((free_range_.head + i) % shape_.pages)]);
    TESSERA_CHECK(entries[page] == 0, "a free page stands in a table or twice in the list");
    entries[page] = 1;
  }
}

}  // namespace tessera
