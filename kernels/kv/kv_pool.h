#pragma once

#include <cstdint>
#include <span>

#include "base/check.h"
#include "kernels/kv/head_profile.h"
#include "kernels/kv/kv_page.h"

namespace tessera {

inline constexpr int32_t kNoPage = -1;

struct KvFreeRange {
  int64_t head = 0;   // index of the first free id in the circular list
  int64_t count = 0;  // number of free ids
};

// Page tables, free list and owners of all pages, in the backend's memory. Only ops change them.
// Owns nothing: KvArena owns the memory. Invariants, after every op:
// - A page id in [0, page_count) is in the free list's live range exactly if it has no owner.
// - owners[id] is the number of table entries, of rows and of prefix blocks, that hold the page. It
//   exceeds one only for pages that are never written again: closed groups that several sequences,
//   or a sequence and the prefix cache, share.
// - A page-table row has its high-tier pages at the left end, its low-tier pages at the right end,
//   and kNoPage between. A row of a layer with a window has one tier, the high one, and kNoPage in
//   the place of pages that its queries have passed. Its counts and places include those pages.
struct KvPool {
  KvPagesView pages;
  int32_t* tables = nullptr;   // pages.tables, writable
  uint16_t* owners = nullptr;  // [page_count]
  int32_t slots = 0;

  // Circular: the free ids are free_list[(head + i) % page_count] for i in [0, count).
  int32_t* free_list = nullptr;  // [page_count]
  int32_t page_count = 0;
  KvFreeRange* free_range = nullptr;  // one, beside the list, so that a device can own it

  // Prefix blocks: runs of tokens in all layers and KV heads. They outlive the sequence that
  // computed them, and other sequences can begin with them. The host identifies a block by its
  // handle, an index into this table: [prefix_blocks, layers, kv_heads, prefix_block_pages], with
  // kNoPage after the last page. Rows of a compressed section have different numbers of pages.
  int32_t* prefix_block_tables = nullptr;
  int32_t prefix_blocks = 0;
  int32_t prefix_block_pages = 0;  // pages per head in the format with the most bytes per token
  // Tokens of a prefix block: a multiple of kKvGroup and of the capacity of each prefix block
  // format. 0: no prefix blocks.
  int32_t prefix_block_tokens = 0;

  // [layers, kv_heads]; null: the model has no profile.
  const HeadProfile* head_profiles = nullptr;
  // [layers], positions that a query sees, its own included; 0: all. Null: no layer has a window.
  const int32_t* windows = nullptr;

  // Returns: the window of a row's layer; 0: none. head: layer * kv_heads + KV head.
  constexpr int32_t window_of(int64_t head) const {
    return windows == nullptr ? 0 : windows[head / pages.kv_heads];
  }

  constexpr int32_t* prefix_block_table(int32_t handle,
                                        int64_t head) const {  // head: layer * kv_heads + KV head
    return prefix_block_tables +
           (int64_t{handle} * pages.layers * pages.kv_heads + head) * prefix_block_pages;
  }
  // short_tokens: see PrefixBlock.
  constexpr int32_t prefix_block_pages_of(uint8_t tier, int32_t short_tokens = 0) const {
    return (short_tokens > 0 ? short_tokens : prefix_block_tokens) / pages.layouts[tier].capacity;
  }
};

// Returns: pages at the beginning of a row that queries from `position` on do not read, in a layer
// with this window (0: none). They lie before the attention tile of the first token that is seen.
constexpr int32_t passed_pages(int32_t window, int32_t position, int32_t capacity) {
  const int32_t first = position + 1 - window;
  return window == 0 || first <= 0 ? 0 : first / kKvGroup * kKvGroup / capacity;
}

// Aborts unless the pool has that prefix block and its blocks can have that tier's format. Used by
// the ops of every backend.
inline void check_prefix_block(const KvPool& pool, int32_t handle, uint8_t tier) {
  TESSERA_CHECK(handle >= 0 && handle < pool.prefix_blocks, "no such prefix block");
  TESSERA_CHECK(tier < kMaxKvLayouts && pool.pages.layouts[tier].capacity > 0 &&
                    pool.prefix_block_tokens % pool.pages.layouts[tier].capacity == 0 &&
                    pool.prefix_block_pages_of(tier) <= pool.prefix_block_pages,
                "prefix blocks do not have this format");
}

// A prefix block and its format.
struct PrefixBlock {
  int32_t handle = 0;
  uint8_t tier = 0;      // index into KvPagesView::layouts
  bool section = false;  // a compressed section, see KvShare::section
  // Tokens of a short block, a multiple of kKvGroup and of the format's capacity. 0: the block has
  // prefix_block_tokens.
  int32_t short_tokens = 0;

  constexpr int32_t tokens_in(const KvPool& pool) const {
    return short_tokens > 0 ? short_tokens : pool.prefix_block_tokens;
  }
  // Returns: pages of a row. table: the row's in the pool, see KvPool::prefix_block_table.
  constexpr int32_t pages_of(const KvPool& pool, const int32_t* table) const {
    int32_t count = section ? 0 : pool.prefix_block_pages_of(tier, short_tokens);
    while (section && count < pool.prefix_block_pages && table[count] != kNoPage) {
      ++count;
    }
    return count;
  }
};

// Returns: tokens that a row has lost in compressed sections. closed: tokens of its high tier
// before any was dropped; 0: it has lost none. high: tokens that it holds.
constexpr int32_t lost_in_sections(int32_t closed, int32_t high) {
  return closed == 0 ? 0 : closed - high;
}

// Argument of kv_share: make a prefix block from the high tier of every page-table row of `slot`,
// beginning with token `first` of that tier.
struct KvShare {
  int32_t slot = 0;
  uint8_t tier = 0;    // format of the slot's high tier: index into KvPagesView::layouts
  int32_t first = 0;   // a multiple of prefix_block_tokens, or of kKvGroup for a short block
  int32_t handle = 0;  // target prefix block, without pages
  // True: the block is the compressed section at the end of each row. Rows hold different numbers
  // of its pages, none perhaps: full ones, whose tokens have positions from `first` on.
  bool section = false;
  // Not 0: the slot begins with compressed sections, so rows hold different numbers of tokens
  // before the block. Each would hold `closed` tokens in its high tier if none had been dropped.
  // `first` counts those too.
  int32_t closed = 0;
  int32_t short_tokens = 0;  // see PrefixBlock
  // Tokens of the slot's low tier. Rows of layers with a window have them in the high tier.
  int32_t low = 0;
  // False: the slot has passed pages of the block that a window at its end would see. The block
  // then has no pages in layers with a window.
  bool windows = true;

  constexpr int32_t tokens_in(const KvPool& pool) const {
    return short_tokens > 0 ? short_tokens : pool.prefix_block_tokens;
  }
};

// Pages of a prefix block in a row of a layer with a window: [begin, end) of the row. The block has
// those from `kept` on, which a window at the end of the block sees.
struct WindowedPages {
  int32_t begin = 0;
  int32_t kept = 0;
  int32_t end = 0;

  // first: position of the block's first token.
  static constexpr WindowedPages of(int32_t window, int32_t first, int32_t tokens,
                                    int32_t capacity) {
    const int32_t begin = first / capacity;
    const int32_t end = (first + tokens) / capacity;
    const int32_t passed = passed_pages(window, first + tokens, capacity);
    return {begin, passed < begin ? begin : passed < end ? passed : end, end};
  }
};

// Aborts unless kv_share can make the block. Used by the ops of every backend.
inline void check_share(const KvPool& pool, const KvShare& share) {
  check_prefix_block(pool, share.handle, share.tier);
  TESSERA_CHECK(share.slot >= 0 && share.slot < pool.slots, "kv_share: no such slot");
  const int32_t border = share.short_tokens > 0 ? kKvGroup : pool.prefix_block_tokens;
  TESSERA_CHECK(share.first >= 0 && share.first % border == 0,
                "kv_share: a prefix block that begins in the middle of one");
  TESSERA_CHECK(share.tokens_in(pool) <= pool.prefix_block_tokens &&
                    share.short_tokens % kKvGroup == 0 &&
                    share.short_tokens % pool.pages.layouts[share.tier].capacity == 0,
                "kv_share: a short block that is not whole groups and pages");
}

// Returns: place of the first page of a compressed section that is at the end of a row.
// high: tokens of the row, all of them in full pages.
constexpr int32_t first_page_of_section(const KvPagesView& pages, const KvShare& share, int64_t row,
                                        int32_t high) {
  const int32_t capacity = pages.layouts[share.tier].capacity;
  if (pages.section_scores > 0) {
    return pages.section_first(row) / capacity;
  }
  const KvTokenScore* token_scores = pages.token_score_row(row);
  int32_t page = high / capacity;
  while (page > 0 && token_scores[(page - 1) * capacity].position >= share.first) {
    --page;
  }
  return page;
}

// Argument of kv_attach: let `slot`, which has no tokens, begin with these prefix blocks in order
// of position. Blocks of tiers.high go into its high tier, the others into its low tier.
// Requires: every block is of tiers.high or of tiers.low.
// Rows of layers with a window take all blocks into the high tier, and of these the pages that
// queries from position `passed` on read.
struct KvAttachment {
  int32_t slot = 0;
  KvTiers tiers;
  std::span<const PrefixBlock> prefix_blocks;
  int32_t passed = 0;
};

// Argument of kv_resize: queries of `slot` have moved from position `from` to `to`. Rows of layers
// with a window give back the pages that these queries have passed.
struct KvPassed {
  int32_t slot = 0;
  uint8_t tier = 0;  // format of the slot's high tier
  int32_t from = 0;
  int32_t to = 0;
};

// Argument of kv_resize: every page-table row of `slot` gets pages for `tokens` more tokens of its
// high tier, whose layout is pages.layouts[tiers.high].
struct KvGrowth {
  int32_t slot = 0;
  KvTiers tiers;
  int32_t tokens = 0;
};

// Argument of kv_fork: `to`, which has no tokens, becomes a copy of `from`: page-table rows, token
// scores and residual buffers. At most the first `high` tokens of each row's high tier are copied.
// `high` counts tokens that compressed sections have lost, if `closed` is not 0 (KvShare::closed).
// The residual buffer is then valid only if the next group is still the open one of `from`.
// Rows of layers with a window get copies of the pages that queries from position `passed` on read.
struct KvFork {
  int32_t from = 0;
  int32_t to = 0;
  KvTiers tiers;
  int32_t high = INT32_MAX;
  int32_t closed = 0;
  int32_t tokens = 0;  // stored tokens of the copy, with those that sections have lost
  int32_t passed = 0;

  constexpr int32_t closed_tokens() const { return tokens / kKvGroup * kKvGroup; }
  // Returns: the counts of the copy of a row. window: of its layer; 0: none.
  constexpr KvRow counts_of(const KvRow& source, int32_t window) const {
    return window > 0 ? KvRow{closed_tokens(), 0} : KvRow{high_of(source.high), source.low};
  }
  // Returns: tokens of the copy's high tier in a row that holds `of_source` there.
  constexpr int32_t high_of(int32_t of_source) const {
    const int32_t most = high - lost_in_sections(closed, of_source);
    return of_source < most ? of_source : most;
  }
};

// Argument of kv_swap_out or kv_swap_in: the slot that is copied. The copy itself is
// KvSnapshotArgs::bytes.
struct KvSnapshot {
  int32_t slot = 0;
  KvTiers tiers;
  int32_t tokens = 0;  // stored tokens, the open group included
  int32_t passed = 0;  // KvPassed::to of the last call

  // Returns: pages that are missing at the beginning of a row.
  constexpr int32_t passed_in(const KvPool& pool, int64_t head) const {
    return passed_pages(pool.window_of(head), passed, pool.pages.layouts[tiers.high].capacity);
  }
};

// Returns: bytes of one row's query_sums; 0 if there are none.
constexpr int64_t kv_query_sum_bytes(const KvPagesView& pages) {
  return pages.query_sums == nullptr ? 0 : 2 * pages.head_dim * int64_t{sizeof(float)};
}

// Returns: an upper bound of the bytes that kv_swap_out writes for a slot of `tokens` tokens whose
// rows hold `slot_pages` pages in all: counts, pages, query sums, token scores, residual buffers.
constexpr int64_t kv_snapshot_bytes(const KvPagesView& pages, int64_t slot_pages, int32_t tokens) {
  const int64_t rows = int64_t{pages.layers} * pages.kv_heads;
  const int64_t token_scores =
      pages.scores_all_tokens() ? tokens * int64_t{sizeof(KvTokenScore)} : 0;
  return slot_pages * pages.page_bytes +
         rows * (int64_t{sizeof(KvRow)} + pages.residual_layout.page_bytes +
                 kv_query_sum_bytes(pages) + token_scores);
}

}  // namespace tessera
