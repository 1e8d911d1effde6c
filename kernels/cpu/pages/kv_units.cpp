#include "kernels/check.h"
#include "kernels/cpu/pages/free_list.h"
#include "kernels/cpu/pages/ops.h"

namespace tessera::scalar {
namespace {

void share(const KvPool& pool, const KvShare& share) {
  const KvPagesView& pages = pool.pages;
  TESSERA_CHECK(share.slot >= 0 && share.slot < pool.slots, "kv_share: no such slot");
  TESSERA_CHECK(share.first >= 0 && share.first % pool.unit_tokens == 0,
                "kv_share: a unit that begins in the middle of one");
  const FreeList free_list(pool);
  const int64_t first_row = pages.row_index(share.slot, 0, 0);
  const int32_t count = pool.unit_pages_of(share.tier);
  const int64_t entry = share.first / pages.layouts[share.tier].capacity;
  for (int64_t head = 0; head < int64_t{pages.layers} * pages.kv_heads; ++head) {
    TESSERA_CHECK(pages.rows[first_row + head].high >= share.first + pool.unit_tokens,
                  "kv_share: a row without all tokens of the unit");
    const int32_t* from = pages.table(first_row + head) + entry;
    int32_t* to = pool.unit_table(share.handle, head);
    TESSERA_CHECK(to[0] == kNoPage, "kv_share: the handle holds a unit");
    for (int32_t i = 0; i < count; ++i) {
      free_list.share(from[i]);
      to[i] = from[i];
    }
  }
}

// One row of a slot, in which units are put one after the other.
class RowFiller {
 public:
  RowFiller(const KvPool& pool, int64_t row) : pool_(pool), row_(row) {
    const KvPagesView& pages = pool.pages;
    table_ = pool.tables + row * pages.row_pages;
    marks_ = pages.marks == nullptr ? nullptr : pages.mark_row(row);
    TESSERA_CHECK(table_[0] == kNoPage && table_[pages.row_pages - 1] == kNoPage,
                  "kv_attach: the slot holds pages");
  }

  void put(const KvUnit& unit, bool high, int64_t head, int32_t position) {
    const int32_t count = pool_.unit_pages_of(unit.tier);
    TESSERA_CHECK(left_ + right_ + count <= pool_.pages.row_pages,
                  "kv_attach: more pages than a row has room for");
    const int32_t* from = pool_.unit_table(unit.handle, head);
    TESSERA_CHECK(from[0] != kNoPage && from[count - 1] != kNoPage &&
                      (count == pool_.unit_pages || from[count] == kNoPage),
                  "kv_attach: the handle holds no unit of this format");
    for (int32_t i = 0; i < count; ++i) {
      FreeList(pool_).share(from[i]);
      table_[high ? left_++ : pool_.pages.row_pages - 1 - right_++] = from[i];
    }
    KvRow& tokens = pool_.pages.rows[row_];
    int32_t& stored = high ? tokens.high : tokens.low;
    for (int32_t i = 0; marks_ != nullptr && i < pool_.unit_tokens; ++i) {
      const int32_t mark = high ? stored + i : pool_.pages.row_marks - 1 - (stored + i);
      marks_[mark] = {0, position + i};
    }
    stored += pool_.unit_tokens;
  }

 private:
  const KvPool& pool_;
  int64_t row_;
  int32_t* table_;
  KvMark* marks_;
  int32_t left_ = 0;  // pages
  int32_t right_ = 0;
};

void attach(const KvPool& pool, const KvAttachment& attachment) {
  const KvPagesView& pages = pool.pages;
  const KvTiers tiers = attachment.tiers;
  TESSERA_CHECK(attachment.slot >= 0 && attachment.slot < pool.slots, "kv_attach: no such slot");
  for (const KvUnit& unit : attachment.units) {
    check_unit(pool, unit.handle, unit.tier);
    TESSERA_CHECK(unit.tier == tiers.high || unit.tier == tiers.low,
                  "kv_attach: a unit of neither tier");
  }
  const int64_t first_row = pages.row_index(attachment.slot, 0, 0);
  for (int64_t head = 0; head < int64_t{pages.layers} * pages.kv_heads; ++head) {
    RowFiller row(pool, first_row + head);
    int32_t position = 0;
    for (const KvUnit& unit : attachment.units) {
      row.put(unit, unit.tier == tiers.high, head, position);
      position += pool.unit_tokens;
    }
  }
}

void drop(const KvPool& pool, int32_t handle) {
  TESSERA_CHECK(handle >= 0 && handle < pool.units, "kv_drop: no such unit");
  const FreeList free_list(pool);
  for (int64_t head = 0; head < int64_t{pool.pages.layers} * pool.pages.kv_heads; ++head) {
    int32_t* table = pool.unit_table(handle, head);
    TESSERA_CHECK(table[0] != kNoPage, "kv_drop: the handle holds no unit");
    for (int32_t i = 0; i < pool.unit_pages && table[i] != kNoPage; ++i) {
      free_list.let_go(table[i]);
      table[i] = kNoPage;
    }
  }
}

}  // namespace

void kv_share(const KvShareArgs& args, Stream) {
  for (const KvShare& one : args.shares) {
    check_unit(args.pool, one.handle, one.tier);
    share(args.pool, one);
  }
}

void kv_attach(const KvAttachArgs& args, Stream) {
  for (const KvAttachment& one : args.attachments) {
    attach(args.pool, one);
  }
}

void kv_drop(const KvDropArgs& args, Stream) {
  for (const int32_t handle : args.handles) {
    drop(args.pool, handle);
  }
}

}  // namespace tessera::scalar
