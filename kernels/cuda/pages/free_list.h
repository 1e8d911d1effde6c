#pragma once

#include "kernels/cuda/simt/block.h"
#include "kernels/kv/kv_pool.h"

namespace tessera::cuda {

// Kernels that move page ids run as one block. Each thread has a row or a table entry. A prefix sum
// over the block gives each thread its places in the circular free list.
inline constexpr int32_t kPoolThreads = 1024;

// The free list while one block changes it; finish() writes the new range back. `pool` and `memory`
// (shared memory) are not owned.
// Requires: all threads of the block make every call.
class BlockFreeList {
 public:
  using Memory = simt::OfWarps<int32_t>;

  TESSERA_DEVICE BlockFreeList(const KvPool& pool, Memory& memory)
      : pool_(pool), memory_(memory), range_(*pool.free_range) {}

  // Each thread releases the page of one table entry (null: none) and sets the entry to kNoPage. A
  // page without owners returns to the free list.
  TESSERA_DEVICE void release_page(int32_t* entry) {
    const int32_t id = entry != nullptr ? *entry : kNoPage;
    bool freed = false;
    if (id != kNoPage) {
      const uint16_t owners = simt::subtract_owner(&pool_.owners[id]);
      simt::check(owners > 0);
      freed = owners == 1;
      *entry = kNoPage;
    }
    const simt::Place place = simt::block_place(freed ? 1 : 0, memory_);
    if (freed) {
      pool_.free_list[wrapped(range_.head + range_.count + place.first)] = id;
    }
    range_.count += place.all;
  }

  // Takes `count` pages for each thread. page(i) then returns the thread's page i, with one owner,
  // until the next call.
  // Requires: enough free pages for all threads.
  TESSERA_DEVICE void take(int32_t count) {
    const simt::Place place = simt::block_place(count, memory_);
    first_ = wrapped(range_.head + place.first);
    simt::check(place.all <= range_.count);
    range_ = {wrapped(range_.head + place.all), range_.count - place.all};
  }
  TESSERA_DEVICE int32_t page(int32_t i) const {
    const int32_t id = pool_.free_list[wrapped(first_ + i)];
    pool_.owners[id] = 1;
    return id;
  }

  // Writes the free range back.
  // Requires: no further call.
  TESSERA_DEVICE void finish() {
    simt::sync_block();
    if (simt::thread() == 0) {
      *pool_.free_range = range_;
    }
  }

 private:
  TESSERA_DEVICE int64_t wrapped(int64_t place) const {
    return place >= pool_.page_count ? place - pool_.page_count : place;
  }

  const KvPool& pool_;
  Memory& memory_;
  KvFreeRange range_;
  int64_t first_ = 0;
};

TESSERA_DEVICE void share_page(const KvPool& pool, int32_t id) {
  simt::check(id >= 0 && simt::atomic_add(&pool.owners[id], uint16_t{1}) != UINT16_MAX);
}

}  // namespace tessera::cuda
