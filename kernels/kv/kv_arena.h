#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/memory_mapping.h"
#include "kernels/device/device_memory.h"
#include "kernels/device/stream.h"
#include "kernels/kv/head_profile.h"
#include "kernels/kv/key_sketch.h"
#include "kernels/kv/kv_page.h"
#include "kernels/kv/kv_pool.h"
#include "kernels/kv/kv_scorers.h"

namespace tessera {

// Compressed sections (KvPolicy::section) as prefix blocks: a tier, the pages that a row keeps, as
// a mean over rows, and the scorer that chose the kept tokens.
struct KvSectionBlock {
  uint8_t tier = 0;
  int32_t row_pages = 0;
  KvScorer scorer = KvScorer::none;

  friend bool operator==(const KvSectionBlock&, const KvSectionBlock&) = default;
};

// Sizes of an arena: its pages, page tables and slots.
struct KvArenaShape {
  std::vector<KvFormat> formats;  // formats of pages; a tier is an index into this list
  int32_t head_dim = 0;
  int64_t page_bytes = 0;  // see best_page_bytes() (kernels/kv/kv_page_size.h); with sketch_bytes
  int32_t pages = 0;
  int32_t slots = 0;  // sequences that hold pages at the same time
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t context = 0;         // tokens of the longest sequence
  bool token_scores = false;   // a policy needs a score and a position for each token
  int32_t section_scores = 0;  // see KvPagesView
  bool query_sums = false;     // a policy may prune keys by the sums of queries
  // Tokens of a prefix block (kernels/kv/kv_pool.h), and the tiers of its possible formats. A block
  // is a whole number of groups, and of pages in each of these formats. 0: no prefix blocks.
  int32_t prefix_block_tokens = 0;
  std::vector<uint8_t> prefix_block_tiers = {};
  std::vector<KvSectionBlock> section_blocks = {};  // of the presets that replay
  // Tokens of a short block, for the tokens behind the last whole one. 0: no short blocks.
  int32_t short_block_tokens = 0;
  // Host bytes that the owner of the arena keeps for each prefix block; counted in total_bytes().
  int64_t prefix_block_host_bytes = 0;
  // Bytes at the end of each page for the sketch of its keys (kernels/kv/key_sketch.h). 0: none.
  int64_t sketch_bytes = 0;
  // Residual buffers hold codes of 8 bits in place of floats. All formats must be of codes.
  bool coded_residuals = false;
  // Profiles of the whole model, [layers, KV heads on all ranks]; the arena is that of `rank`.
  // Empty: policies whose allocator reads a profile are not served.
  std::vector<HeadProfile> head_profiles = {};
  int32_t rank = 0;
  // [layers]: see KvPool::windows. All windows have one length. Empty: no layer has one.
  std::vector<int32_t> windows = {};

  KvPageLayout layout(size_t tier) const {
    return KvPageLayout::fit(formats[tier], head_dim, page_bytes - sketch_bytes);
  }
  // f32 is never combined with other formats: every other format closes groups from their f16 form,
  // or from that form's codes.
  KvPageLayout residual_layout() const {
    const KvFormat floats = formats[0] == kKvF32 ? kKvF32 : kKvF16;
    return KvPageLayout::make(coded_residuals ? kKvK8V8 : floats, head_dim, kKvGroup);
  }
  // Returns: number of ranks over which the profiled model is split.
  int32_t profiled_ranks() const {
    return static_cast<int32_t>(std::ssize(head_profiles) / slot_rows());
  }
  // Returns: the profile of a row of a rank's arena, in the order of slot rows.
  // Requires: of_rank < profiled_ranks().
  HeadProfile head_profile(int32_t of_rank, int64_t row) const {
    const int64_t head = int64_t{of_rank} * kv_heads + row % kv_heads;
    const int64_t layer = row / kv_heads;
    return head_profiles[static_cast<size_t>(layer * kv_heads * profiled_ranks() + head)];
  }
  // Closed tokens of the longest sequence.
  int32_t closed_tokens() const { return context / kKvGroup * kKvGroup; }
  // Returns: table entries of one row: pages of the longest sequence in the least dense format.
  // With several formats one more, because both ends of a row may have a partly filled page.
  int32_t row_pages() const;
  // One more than the tokens of the longest sequence, or of a section: see KvPagesView.
  int32_t row_token_scores() const {
    return token_scores ? (section_scores > 0 ? section_scores : context) + 1 : 0;
  }
  // Returns: true if short blocks of this tier's format are whole pages.
  bool has_short_blocks(size_t tier) const {
    return short_block_tokens > 0 && short_block_tokens % layout(tier).capacity == 0;
  }
  // Pages of a prefix block in each row, in its densest and in its least dense format. The first
  // counts short blocks and compressed sections too.
  int32_t min_prefix_block_pages() const;
  int32_t max_prefix_block_pages() const;
  // Returns: the largest number of prefix blocks. Each block has pages of its own in the layers
  // without a window, so no more fit into the arena. If there are no such layers, a block without
  // pages is of no use, and the number is that of blocks with all pages.
  int32_t prefix_blocks() const;
  int64_t least_pages_of_prefix_block() const {
    return min_prefix_block_pages() * (whole_rows() > 0 ? whole_rows() : slot_rows());
  }
  int64_t rows() const { return int64_t{slots} * slot_rows(); }
  int64_t slot_rows() const { return int64_t{layers} * kv_heads; }
  int32_t window() const;         // of the layers that have one; 0: none has
  int64_t windowed_rows() const;  // of a slot, in layers with a window
  int64_t whole_rows() const { return slot_rows() - windowed_rows(); }
  // Returns: pages of a prefix block of so many tokens in a row of a layer with a window: those
  // that a query behind the block reads. They are as many wherever the block begins.
  int32_t windowed_block_pages(size_t tier, int32_t tokens) const {
    const WindowedPages of = WindowedPages::of(window(), 0, tokens, layout(tier).capacity);
    return of.end - of.kept;
  }

  // Bytes of each part. The parts of a slot have the same size for all slots and are allocated at
  // the start.
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
  // Bytes for one more page: the page, its entry in the free list, its owner count and its share of
  // the bytes of prefix blocks.
  int64_t cost_of_page() const {
    return page_bytes + int64_t{sizeof(int32_t) + sizeof(uint16_t)} + prefix_block_bytes_of_page();
  }
  int64_t prefix_block_bytes_of_page() const {
    return prefix_block_tokens == 0
               ? 0
               : div_ceil(int64_t{sizeof(int32_t)} * max_prefix_block_pages() * slot_rows() +
                              prefix_block_host_bytes,
                          least_pages_of_prefix_block());
  }
  int64_t total_bytes() const { return slots * slot_bytes() + pages * cost_of_page(); }
};

// Owner of the KV memory of one backend: arena, page tables, residual buffers, token scores, owner
// counts and free list. Everything is allocated once, in host memory or in the backend's own. This
// class never moves pages: ops do, given pool(). Functions that return numbers of a device's pages
// copy them from the device, and wait.
class KvArena {
 public:
  // Allocates an arena with all pages free. `memory` (null: host memory) and `stream` are not owned
  // and outlive the arena.
  // Requires: formats with kernels; a page that holds a tile of each; f32 as the only format.
  // Returns: null if the system refuses the memory.
  static std::unique_ptr<KvArena> make(const KvArenaShape& shape,
                                       const DeviceMemory* memory = nullptr, Stream stream = {});
  KvArena(const KvArena&) = delete;
  KvArena& operator=(const KvArena&) = delete;

  const KvArenaShape& shape() const { return shape_; }
  // Views for ops. The arena outlives them.
  KvPool pool();
  KvPagesView view() const;
  // Returns: pool() with tables, counts, owners and free list copied to host memory, as they are
  // now. Pages, residual buffers and token scores stay in place. Used to compute the costs of ops.
  KvPool host_pool();

  // Makes host memory resident that else becomes so as pages are written. A device's always is.
  // Returns: false if the system does not have it.
  bool populate();

  void wait() const;  // waits for the ops that were started on a device
  int64_t free_pages() const;
  // Returns: token counts of a slot's rows, all layers and KV heads in order. Valid until the next
  // call.
  std::span<const KvRow> slot_rows(int32_t slot) const;
  // Returns: pages in the slot's rows, all layers and KV heads together; shared pages are counted.
  int64_t slot_pages(int32_t slot) const;
  int64_t prefix_block_pages(int32_t handle) const;  // the same for a prefix block
  bool is_sole_owner(int32_t handle) const;  // true if only the prefix block holds its pages

  // Aborts unless these invariants hold. Every page has as many owners as table entries that hold
  // it. A page is in the free list's live range once if it has no owner, and otherwise not at all.
  // Each row's pages are at its two ends. Reads all tables: for tests and debugging.
  void check_integrity() const;

 private:
  // Numbers that ops change. `host` is the array itself in host memory, or a copy of a device's
  // array.
  template <class T>
  struct Numbers {
    mutable std::vector<T> host;
    T* data = nullptr;  // the array that ops use
  };
  struct Memory {
    MemoryMapping arena;
    MemoryMapping residuals;
    MemoryMapping token_scores;
    MemoryMapping query_sums;
    DeviceBytes device = {};  // replaces the above: all parts in one allocation
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
  Numbers<KvFreeRange> free_range_;     // a single element
  Numbers<HeadProfile> head_profiles_;  // never changed, like the next one
  Numbers<int32_t> windows_;
};

}  // namespace tessera
