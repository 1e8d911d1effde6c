#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/kv_page.h"
#include "kernels/kv_pool.h"
#include "kernels/memory_mapping.h"

namespace tessera {

struct KvArenaShape {
  std::vector<KvFormat> formats;  // that pages may have; a tier is a place in this list
  int32_t head_dim = 0;
  int64_t page_bytes = 0;  // best_page_bytes() (kernels/kv_page_size.h) knows a good one
  int32_t pages = 0;
  int32_t slots = 0;  // sequences that hold pages at one time
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t context = 0;        // tokens of the longest sequence
  bool token_scores = false;  // whether a policy wants a score and a position for each stored token
  bool query_sums = false;    // whether a policy may prune keys by what queries look at
  // Of a unit (kernels/kv_pool.h), and the places in `formats` of those that units have. A unit is
  // a whole number of groups and of pages of each. 0: no units.
  int32_t prefix_block_tokens = 0;
  std::vector<uint8_t> prefix_block_tiers = {};
  int64_t prefix_block_host_bytes =
      0;  // that whoever owns the arena keeps for each unit, counted here

  KvPageLayout layout(size_t tier) const {
    return KvPageLayout::fit(formats[tier], head_dim, page_bytes);
  }
  // f32 stands alone: every other format closes groups from their f16 form.
  KvPageLayout residual_layout() const {
    return KvPageLayout::make(formats[0] == kKvF32 ? kKvF32 : kKvF16, head_dim, kKvGroup);
  }
  int32_t closed_tokens() const { return context / kKvGroup * kKvGroup; }  // of the longest
  // Pages of the longest sequence in the least dense format; where rows have two ends, one more,
  // because both may have a partly filled page.
  int32_t row_pages() const;
  // One more than the longest sequence has tokens: see KvPagesView.
  int32_t row_token_scores() const { return token_scores ? context + 1 : 0; }
  // Pages that a unit has in each row, of the densest format and of the least dense one.
  int32_t min_prefix_block_pages() const;
  int32_t max_prefix_block_pages() const;
  // So many units fit into the pages. A unit has pages of its own, so there are never more.
  int32_t prefix_blocks() const;
  int64_t rows() const { return int64_t{slots} * slot_rows(); }
  int64_t slot_rows() const { return int64_t{layers} * kv_heads; }

  // Bytes of each part. Those of a slot are the same for all slots and there from the start.
  int64_t arena_bytes() const { return int64_t{pages} * page_bytes; }
  int64_t slot_residual_bytes() const { return slot_rows() * residual_layout().page_bytes; }
  int64_t slot_table_bytes() const;
  int64_t slot_token_score_bytes() const;
  int64_t slot_query_sum_bytes() const {
    return query_sums ? slot_rows() * 2 * head_dim * int64_t{sizeof(float)} : 0;
  }
  int64_t slot_bytes() const {
    return slot_residual_bytes() + slot_table_bytes() + slot_token_score_bytes() +
           slot_query_sum_bytes();
  }
  // What one more page takes: itself, its place in the free list, its owners and its share of what
  // units take.
  int64_t cost_of_page() const {
    return page_bytes + int64_t{sizeof(int32_t) + sizeof(uint16_t)} + prefix_block_bytes_of_page();
  }
  int64_t prefix_block_bytes_of_page() const {
    return prefix_block_tokens == 0
               ? 0
               : div_ceil(int64_t{sizeof(int32_t)} * max_prefix_block_pages() * slot_rows() +
                              prefix_block_host_bytes,
                          min_prefix_block_pages() * slot_rows());
  }
  int64_t total_bytes() const { return slots * slot_bytes() + pages * cost_of_page(); }
};

// The pages of one backend: the arena, the page tables, windows and marks, owners and the free
// list, which are allocated once, in host memory or in the backend's own. Nothing here moves pages:
// ops do, given pool(). What is asked here of a device's pages is copied from there, and waits.
class KvArena {
 public:
  // All pages are free. Null when the system refuses the memory. Requires: formats with kernels, a
  // page that holds a tile of each, and f32 on its own.
  static std::unique_ptr<KvArena> make(const KvArenaShape& shape,
                                       const DeviceMemory* memory = nullptr, Stream stream = {});
  KvArena(const KvArena&) = delete;
  KvArena& operator=(const KvArena&) = delete;

  const KvArenaShape& shape() const { return shape_; }
  KvPool pool();
  KvPagesView view() const;
  // pool() with its tables, counts, owners and free list as they are now in host memory; pages,
  // windows and marks stay where they are. For those who count what ops do (kernels/op_cost.h).
  KvPool host_pool();

  void wait() const;  // for the ops that were started on a device
  int64_t free_pages() const;
  // Of all layers and KV heads of a slot, in order; until the next call.
  std::span<const KvRow> slot_rows(int32_t slot) const;
  // Entries of the slot's rows, all layers and KV heads together; shared pages are counted.
  int64_t slot_pages(int32_t slot) const;
  int64_t prefix_block_pages(int32_t handle) const;  // the same of a unit
  bool is_sole_owner(int32_t handle) const;  // of a unit: nothing else holds any of its pages

  // Aborts unless every page has as many owners as table entries hold it, is in the free list's
  // live range once if that is none and not otherwise, and each row's pages stand at its two ends.
  // Walks everything: for tests and debugging.
  void check_integrity() const;

 private:
  // Numbers that ops change: in host memory themselves, or a copy of what a device has of them.
  template <class T>
  struct Numbers {
    mutable std::vector<T> host;
    T* data = nullptr;  // where ops find them
  };
  struct Memory {
    MemoryMapping arena;
    MemoryMapping residuals;
    MemoryMapping token_scores;
    MemoryMapping query_sums;
    DeviceBytes device = {};  // everything, in place of those
  };
  KvArena(const KvArenaShape& shape, Memory memory);
  void place_on_device();
  template <class T>
  std::span<const T> read(const Numbers<T>& numbers, int64_t first, int64_t count) const;
  template <class T>
  std::span<const T> read(const Numbers<T>& numbers) const;

  KvArenaShape shape_;
  Memory memory_;
  Stream stream_;
  std::byte* arena_ = nullptr;
  std::byte* residuals_ = nullptr;
  KvTokenScore* token_scores_ = nullptr;
  float* query_sums_ = nullptr;
  Numbers<int32_t> tables_;
  Numbers<KvRow> rows_;
  Numbers<int32_t> prefix_block_tables_;
  Numbers<uint16_t> owners_;
  Numbers<int32_t> free_list_;
  Numbers<KvFreeRange> free_range_;  // one
};

}  // namespace tessera
