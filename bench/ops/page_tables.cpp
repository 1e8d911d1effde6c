#include "bench/ops/page_tables.h"

#include <numeric>

namespace tessera::bench {

PageTables::PageTables(const PageTablesShape& of, const Setup& setup, const Shape& shape)
    : device_(*setup.device),
      slot_rows_(int64_t{shape.layers} * shape.kv_heads),
      ids_(of.slots * slot_rows_ * of.row_pages),
      prefix_block_ids_(of.prefix_blocks * slot_rows_ * of.prefix_block_pages),
      tables_(device_, ids_ * int64_t{sizeof(int32_t)}),
      prefix_block_tables_(device_, prefix_block_ids_ * int64_t{sizeof(int32_t)}),
      free_list_(device_, ids_ * int64_t{sizeof(int32_t)}),
      owners_(device_, ids_ * int64_t{sizeof(uint16_t)}),
      rows_(device_, of.slots * slot_rows_ * int64_t{sizeof(KvRow)}),
      free_range_(device_, sizeof(KvFreeRange)) {
  pool_.tables = tables_.as<int32_t>();
  pool_.pages.tables = pool_.tables;
  pool_.pages.rows = rows_.as<KvRow>();
  pool_.pages.layouts[0] = KvPageLayout::make(kKvF16, shape.head_dim, kKvGroup);
  pool_.pages.layers = shape.layers;
  pool_.pages.kv_heads = shape.kv_heads;
  pool_.pages.row_pages = of.row_pages;
  pool_.owners = owners_.as<uint16_t>();
  pool_.slots = of.slots;
  pool_.free_list = free_list_.as<int32_t>();
  pool_.page_count = static_cast<int32_t>(ids_);
  pool_.free_range = free_range_.as<KvFreeRange>();
  pool_.prefix_block_tables = prefix_block_tables_.as<int32_t>();
  pool_.prefix_blocks = of.prefix_blocks;
  pool_.prefix_block_pages = of.prefix_block_pages;
  pool_.prefix_block_tokens = of.prefix_block_pages * kKvGroup;

  const std::vector<std::byte> no_page(sizeof(int32_t), std::byte{0xff});
  static_assert(kNoPage == -1);
  device_.repeat(tables_.as<std::byte>(), tables_.size(), no_page);
  device_.repeat(prefix_block_tables_.as<std::byte>(), prefix_block_tables_.size(), no_page);
  std::vector<int32_t> free_ids(static_cast<size_t>(ids_));
  std::iota(free_ids.begin(), free_ids.end(), 0);
  device_.upload(pool_.free_list, free_ids);
  device_.upload(pool_.free_range, std::vector{KvFreeRange{0, ids_}});
}

int64_t PageTables::slot_bytes(int32_t row_pages, const Shape& shape) {
  return int64_t{shape.layers} * shape.kv_heads * row_pages *
         int64_t{2 * sizeof(int32_t) + sizeof(uint16_t)};
}

void PageTables::set_tokens(int32_t slot, int32_t tokens) {
  device_.upload(pool_.pages.rows + slot * slot_rows_,
                 std::vector<KvRow>(static_cast<size_t>(slot_rows_), KvRow{tokens, 0}));
}

}  // namespace tessera::bench
