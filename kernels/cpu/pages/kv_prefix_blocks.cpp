#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/pages/free_list.h"
#include "kernels/cpu/pages/kv_ops.h"

namespace tessera::scalar {
namespace {

// Shares the pages of a block in a row of a layer with a window.
void share_windowed(const KvPool& pool, const KvShare& share, int64_t head) {
  const KvPagesView& pages = pool.pages;
  const int32_t* from = pages.table(pages.row_index(share.slot, 0, 0) + head);
  int32_t* to = pool.prefix_block_table(share.handle, head);
  const WindowedPages of =
      WindowedPages::of(pool.window_of(head), share.first + share.low, share.tokens_in(pool),
                        pages.layouts[share.tier].capacity);
  for (int32_t i = of.kept; share.windows && i < of.end; ++i) {
    TESSERA_CHECK(to[i - of.begin] == kNoPage, "kv_share: the handle holds a prefix block");
    TESSERA_CHECK(from[i] != kNoPage, "kv_share: a page that the slot has passed");
    FreeList(pool).share(from[i]);
    to[i - of.begin] = from[i];
  }
}

void share(const KvPool& pool, const KvShare& share) {
  check_share(pool, share);
  const KvPagesView& pages = pool.pages;
  const FreeList free_list(pool);
  const int64_t first_row = pages.row_index(share.slot, 0, 0);
  const int32_t capacity = pages.layouts[share.tier].capacity;
  for (int64_t head = 0; head < int64_t{pages.layers} * pages.kv_heads; ++head) {
    const int64_t row = first_row + head;
    if (pool.window_of(head) > 0) {
      share_windowed(pool, share, head);
      continue;
    }
    const int32_t high = pages.rows[row].high;
    const int32_t first_token = share.first - lost_in_sections(share.closed, high);
    int32_t first = first_token / capacity;
    int32_t count = pool.prefix_block_pages_of(share.tier, share.short_tokens);
    if (share.section) {
      TESSERA_CHECK(high % capacity == 0, "kv_share: a section that ends within a page");
      first = first_page_of_section(pages, share, row, high);
      count = high / capacity - first;
      TESSERA_CHECK(count <= pool.prefix_block_pages, "kv_share: a section of too many pages");
    } else {
      TESSERA_CHECK(first_token >= 0 && first_token % capacity == 0 &&
                        high >= first_token + share.tokens_in(pool),
                    "kv_share: a row without all tokens of the prefix block");
    }
    const int32_t* from = pages.table(row) + first;
    int32_t* to = pool.prefix_block_table(share.handle, head);
    TESSERA_CHECK(to[0] == kNoPage, "kv_share: the handle holds a prefix block");
    for (int32_t i = 0; i < count; ++i) {
      free_list.share(from[i]);
      to[i] = from[i];
    }
  }
}

// Appends prefix blocks to one row of a slot.
class RowFiller {
 public:
  RowFiller(const KvPool& pool, int64_t row) : pool_(pool), row_(row) {
    const KvPagesView& pages = pool.pages;
    table_ = pool.tables + row * pages.row_pages;
    token_scores_ = pages.scores_all_tokens() ? pages.token_score_row(row) : nullptr;
    TESSERA_CHECK(table_[0] == kNoPage && table_[pages.row_pages - 1] == kNoPage,
                  "kv_attach: the slot holds pages");
  }

  void put(const PrefixBlock& prefix_block, bool high, int64_t head, int32_t position) {
    const int32_t* from = pool_.prefix_block_table(prefix_block.handle, head);
    const int32_t count = prefix_block.pages_of(pool_, from);
    TESSERA_CHECK(left_ + right_ + count <= pool_.pages.row_pages,
                  "kv_attach: more pages than a row has room for");
    TESSERA_CHECK(
        prefix_block.section || (from[count - 1] != kNoPage &&
                                 (count == pool_.prefix_block_pages || from[count] == kNoPage)),
        "kv_attach: the handle holds no prefix block of this format");
    for (int32_t i = 0; i < count; ++i) {
      FreeList(pool_).share(from[i]);
      table_[high ? left_++ : pool_.pages.row_pages - 1 - right_++] = from[i];
    }
    KvRow& counts = pool_.pages.rows[row_];
    int32_t& stored = high ? counts.high : counts.low;
    const int32_t tokens = count * pool_.pages.layouts[prefix_block.tier].capacity;
    for (int32_t i = 0; token_scores_ != nullptr && i < tokens; ++i) {
      const int32_t token_score =
          high ? stored + i : pool_.pages.row_token_scores - 1 - (stored + i);
      token_scores_[token_score] = {0, position + i};
    }
    stored += tokens;
  }

 private:
  const KvPool& pool_;
  int64_t row_;
  int32_t* table_;
  KvTokenScore* token_scores_;
  int32_t left_ = 0;  // pages
  int32_t right_ = 0;
};

// Fills a row of a layer with a window.
void attach_windowed(const KvPool& pool, const KvAttachment& attachment, int64_t head) {
  const KvPagesView& pages = pool.pages;
  const int64_t row = pages.row_index(attachment.slot, 0, 0) + head;
  const int32_t capacity = pages.layouts[attachment.tiers.high].capacity;
  int32_t* const table = pool.tables + row * pages.row_pages;
  int32_t tokens = 0;
  for (const PrefixBlock& prefix_block : attachment.prefix_blocks) {
    tokens += prefix_block.tokens_in(pool);
  }
  TESSERA_CHECK(tokens / capacity <= pages.row_pages,
                "kv_attach: more pages than a row has room for");
  const int32_t passed = passed_pages(pool.window_of(head), attachment.passed, capacity);
  int32_t position = 0;
  for (const PrefixBlock& prefix_block : attachment.prefix_blocks) {
    const int32_t* from = pool.prefix_block_table(prefix_block.handle, head);
    const int32_t first = position / capacity;
    position += prefix_block.tokens_in(pool);
    for (int32_t i = std::max(first, passed); i < position / capacity; ++i) {
      TESSERA_CHECK(table[i] == kNoPage, "kv_attach: the slot holds pages");
      TESSERA_CHECK(from[i - first] != kNoPage,
                    "kv_attach: the handle has no page that a window sees");
      FreeList(pool).share(from[i - first]);
      table[i] = from[i - first];
    }
  }
  pages.rows[row].high = tokens;
}

void attach(const KvPool& pool, const KvAttachment& attachment) {
  const KvPagesView& pages = pool.pages;
  const KvTiers tiers = attachment.tiers;
  TESSERA_CHECK(attachment.slot >= 0 && attachment.slot < pool.slots, "kv_attach: no such slot");
  for (const PrefixBlock& prefix_block : attachment.prefix_blocks) {
    check_prefix_block(pool, prefix_block.handle, prefix_block.tier);
    TESSERA_CHECK(prefix_block.tier == tiers.high || prefix_block.tier == tiers.low,
                  "kv_attach: a prefix block of neither tier");
  }
  const int64_t first_row = pages.row_index(attachment.slot, 0, 0);
  for (int64_t head = 0; head < int64_t{pages.layers} * pages.kv_heads; ++head) {
    if (pool.window_of(head) > 0) {
      attach_windowed(pool, attachment, head);
      continue;
    }
    RowFiller row(pool, first_row + head);
    int32_t position = 0;
    for (const PrefixBlock& prefix_block : attachment.prefix_blocks) {
      row.put(prefix_block, prefix_block.tier == tiers.high, head, position);
      position += prefix_block.tokens_in(pool);
    }
  }
}

void drop(const KvPool& pool, int32_t handle, bool windows_only) {
  TESSERA_CHECK(handle >= 0 && handle < pool.prefix_blocks, "kv_evict: no such prefix block");
  const FreeList free_list(pool);
  int64_t released = 0;
  for (int64_t head = 0; head < int64_t{pool.pages.layers} * pool.pages.kv_heads; ++head) {
    int32_t* table = pool.prefix_block_table(handle, head);
    const bool windowed = pool.window_of(head) > 0;
    for (int32_t i = 0; i < pool.prefix_block_pages && (!windows_only || windowed); ++i) {
      if (table[i] == kNoPage) {  // a window has passed the first pages of its rows
        continue;
      }
      free_list.release_page(table[i]);
      table[i] = kNoPage;
      ++released;
    }
  }
  TESSERA_CHECK(released > 0 || pool.windows != nullptr,
                "kv_evict: the handle holds no prefix block");
}

}  // namespace

void kv_share(const KvShareArgs& args, Stream) {
  for (const KvShare& one : args.shares) {
    share(args.pool, one);
  }
}

void kv_attach(const KvAttachArgs& args, Stream) {
  for (const KvAttachment& one : args.attachments) {
    attach(args.pool, one);
  }
}

void kv_own(const KvOwnArgs& args, Stream) {
  const KvPool& pool = args.pool;
  TESSERA_CHECK(args.slot >= 0 && args.slot < pool.slots, "kv_own: no such slot");
  const FreeList free_list(pool);
  const int32_t capacity = pool.pages.layouts[args.tier].capacity;
  const int64_t first_row = pool.pages.row_index(args.slot, 0, 0);
  for (int64_t head = 0; head < int64_t{pool.pages.layers} * pool.pages.kv_heads; ++head) {
    const int32_t high = pool.pages.rows[first_row + head].high;
    TESSERA_CHECK(high % capacity == 0 && args.tokens % capacity == 0 && args.tokens <= high,
                  "kv_own: tokens that are not in full pages");
    int32_t* const table = pool.tables + (first_row + head) * pool.pages.row_pages;
    for (int32_t i = high / capacity - args.row_pages(); i < high / capacity; ++i) {
      const int32_t shared = table[i];
      TESSERA_CHECK(pool.owners[shared] > 1, "kv_own: a page that the slot alone owns");
      table[i] = free_list.take();
      std::memcpy(pool.pages.page(table[i]), pool.pages.page(shared),
                  static_cast<size_t>(pool.pages.page_bytes));
      free_list.release_page(shared);
    }
  }
}

void kv_evict(const KvEvictArgs& args, Stream) {
  for (const int32_t handle : args.handles) {
    drop(args.pool, handle, args.windows_only);
  }
}

}  // namespace tessera::scalar
