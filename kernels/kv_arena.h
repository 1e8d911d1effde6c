#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kv_page.h"
#include "kernels/kv_pool.h"

namespace tessera {

struct KvArenaShape {
  KvPageLayout layout;
  int32_t pages = 0;
  int32_t slots = 0;  // sequences that hold pages at one time
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t context = 0;  // tokens of the longest sequence

  int32_t row_pages() const { return static_cast<int32_t>(div_ceil(context, layout.capacity)); }
  int64_t arena_bytes() const { return int64_t{pages} * layout.page_bytes; }
};

// The pages of one host-memory backend: the arena, the page tables and the free list, which are
// allocated once. Nothing here moves pages: the ops kv_resize and kv_fork do, given pool().
class KvArena {
 public:
  // All pages are free. Null when the system refuses the memory. The arena starts at a multiple of
  // 2 MiB and asks for huge pages; its bytes are zero and become resident as they are written.
  static std::unique_ptr<KvArena> make(const KvArenaShape& shape);
  ~KvArena();
  KvArena(const KvArena&) = delete;
  KvArena& operator=(const KvArena&) = delete;

  const KvArenaShape& shape() const { return shape_; }
  KvPool pool();
  KvPagesView view() const;

  int64_t free_pages() const { return free_range_.count; }
  // Pages that the rows of `slot` hold, all layers and KV heads together, shared ones included.
  int64_t slot_pages(int32_t slot) const;

  // Aborts unless each page id stands in as many table entries as it has owners, only in rows of
  // its own layer and head, and without any in the free list's live range, once; and each row's
  // pages stand at its beginning. Walks everything: for tests and debugging.
  void check_integrity() const;

 private:
  KvArena(const KvArenaShape& shape, std::byte* mapping, std::byte* arena, size_t mapped_bytes);
  int64_t slot_rows() const { return int64_t{shape_.layers} * shape_.kv_heads; }

  KvArenaShape shape_;
  std::byte* mapping_;  // as the system gave it; the arena starts at the first multiple of 2 MiB
  std::byte* arena_;
  size_t mapped_bytes_;
  std::vector<int32_t> tables_;
  std::vector<int32_t> free_list_;
  std::vector<int32_t> owners_;
  KvFreeRange free_range_;
};

}  // namespace tessera
