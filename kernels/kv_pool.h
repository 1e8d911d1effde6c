#pragma once

#include <cstdint>
#include <span>

#include "kernels/check.h"
#include "kernels/kv_page.h"

namespace tessera {

inline constexpr int32_t kNoPage = -1;

struct KvFreeRange {
  int64_t head = 0;   // place of the first free id in the circular list
  int64_t count = 0;  // free ids
};

// The page tables, the free pages and who owns which, as the backend's memory holds them. Only ops
// change them. Invariants, after every op:
//   - a page id in [0, page_count) stands in the free list's live range exactly if it has no owner;
//   - owners[id] is the number of table entries that hold it, of rows and of units, which is more
//     than one only for pages that are never written again (closed groups of a prompt that several
//     sequences share);
//   - a row's high pages stand at its left end, its low pages at its right, kNoPage between.
struct KvPool {
  KvPagesView pages;
  int32_t* tables = nullptr;   // pages.tables, to be written
  uint16_t* owners = nullptr;  // [page_count]
  int32_t slots = 0;

  // Circular: the free ids are free_list[(head + i) % page_count] for i in [0, count).
  int32_t* free_list = nullptr;  // [page_count]
  int32_t page_count = 0;
  KvFreeRange* free_range = nullptr;  // one, beside the list, so that a device can own it

  // Units: runs of tokens of all heads that outlive the sequence which computed them, and that
  // other sequences may begin with. The host knows a unit by its handle, its place in this table.
  int32_t* prefix_block_tables =
      nullptr;  // [units, layers, kv_heads, prefix_block_pages]; kNoPage behind the last
  int32_t prefix_blocks = 0;
  int32_t prefix_block_pages = 0;  // of the least dense format that units have
  int32_t prefix_block_tokens =
      0;  // a multiple of kKvGroup and of the capacity of each such format; 0: none

  constexpr int32_t* prefix_block_table(int32_t handle,
                                        int64_t head) const {  // head: of all layers
    return prefix_block_tables +
           (int64_t{handle} * pages.layers * pages.kv_heads + head) * prefix_block_pages;
  }
  constexpr int32_t prefix_block_pages_of(uint8_t tier) const {
    return prefix_block_tokens / pages.layouts[tier].capacity;
  }
};

// Requires: the pool has that unit, and units of that tier's format. For ops of every backend.
inline void check_prefix_block(const KvPool& pool, int32_t handle, uint8_t tier) {
  TESSERA_CHECK(handle >= 0 && handle < pool.prefix_blocks, "no such unit");
  TESSERA_CHECK(tier < kMaxKvLayouts && pool.pages.layouts[tier].capacity > 0 &&
                    pool.prefix_block_tokens % pool.pages.layouts[tier].capacity == 0 &&
                    pool.prefix_block_pages_of(tier) <= pool.prefix_block_pages,
                "units do not have this format");
}

// A unit, and of which tier's format it is.
struct PrefixBlock {
  int32_t handle = 0;
  uint8_t tier = 0;
};

// The unit that begins with token `first` of the high tier of each row of `slot`.
struct KvShare {
  int32_t slot = 0;
  uint8_t tier = 0;
  int32_t first = 0;   // a multiple of prefix_block_tokens
  int32_t handle = 0;  // of a unit that holds nothing
};

// A slot that holds nothing begins with these units, in order of position. Those of tiers.high come
// into its high tier, the others, which are of tiers.low, into its low one.
struct KvAttachment {
  int32_t slot = 0;
  KvTiers tiers;
  std::span<const PrefixBlock> prefix_blocks;
};

// Every row of `slot` gets room for `tokens` more tokens of its high tier, whose layout is
// pages.layouts[tiers.high].
struct KvGrowth {
  int32_t slot = 0;
  KvTiers tiers;
  int32_t tokens = 0;
};

// `to`, which holds nothing, becomes a copy of `from`: rows, marks and window. Of each row's high
// tier at most the first `high` tokens; then the window is of use only if the group behind them is
// still the open one of `from`.
struct KvFork {
  int32_t from = 0;
  int32_t to = 0;
  KvTiers tiers;
  int32_t high = INT32_MAX;
};

// What of a slot is saved elsewhere, or comes back from there.
struct KvSnapshot {
  int32_t slot = 0;
  KvTiers tiers;
  int32_t tokens = 0;  // stored, the open group's included
};

// What a row has of sums of queries.
constexpr int64_t kv_query_sum_bytes(const KvPagesView& pages) {
  return pages.query_sums == nullptr ? 0 : 2 * pages.head_dim * int64_t{sizeof(float)};
}

// Most bytes of the image of a slot whose rows hold `slot_pages` pages in all: counts, pages, sums
// of queries, marks and windows.
constexpr int64_t kv_snapshot_bytes(const KvPagesView& pages, int64_t slot_pages, int32_t tokens) {
  const int64_t rows = int64_t{pages.layers} * pages.kv_heads;
  const int64_t token_scores =
      pages.token_scores == nullptr ? 0 : tokens * int64_t{sizeof(KvTokenScore)};
  return slot_pages * pages.page_bytes +
         rows * (int64_t{sizeof(KvRow)} + pages.residual_layout.page_bytes +
                 kv_query_sum_bytes(pages) + token_scores);
}

}  // namespace tessera
