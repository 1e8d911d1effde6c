#pragma once

#include <cstdint>
#include <vector>

#include "bench/device_array.h"
#include "bench/op.h"
#include "kernels/kv/kv_pool.h"

namespace tessera::bench {

struct PageTablesShape {
  int32_t slots = 0;
  int32_t row_pages = 0;
  int32_t prefix_blocks = 0;  // 0: none
  int32_t prefix_block_pages = 0;
};

// Page tables, a free list and owners without page contents, for as many pages as all rows can
// hold. For ops that move page ids and never access a page. A page holds 64 tokens. The device
// outlives it.
class PageTables {
 public:
  PageTables(const PageTablesShape& of, const Setup& setup, const Shape& shape);

  const KvPool& pool() const { return pool_; }
  int64_t slot_rows() const { return slot_rows_; }
  // Returns: bytes of tables, free list and owners for the pages of one slot.
  static int64_t slot_bytes(int32_t row_pages, const Shape& shape);

  // Sets the number of tokens of every row of the slot.
  void set_tokens(int32_t slot, int32_t tokens);

  // Returns: cost of an op, computed by `cost_of` from a pool whose numbers the host can read.
  template <class Cost>
  OpCost cost(Cost&& cost_of) const {
    const std::vector<int32_t> tables = device_.download(pool_.tables, ids_);
    const std::vector<int32_t> prefix_block_tables =
        device_.download(pool_.prefix_block_tables, prefix_block_ids_);
    std::vector<KvRow> rows = device_.download(pool_.pages.rows, pool_.slots * slot_rows_);
    KvPool seen = pool_;
    seen.pages.tables = tables.data();
    seen.pages.rows = rows.data();
    seen.prefix_block_tables = const_cast<int32_t*>(prefix_block_tables.data());
    return cost_of(seen);
  }

 private:
  const Device& device_;
  int64_t slot_rows_;
  int64_t ids_;
  int64_t prefix_block_ids_;
  DeviceArray tables_;
  DeviceArray prefix_block_tables_;
  DeviceArray free_list_;
  DeviceArray owners_;
  DeviceArray rows_;
  DeviceArray free_range_;
  KvPool pool_;
};

}  // namespace tessera::bench
