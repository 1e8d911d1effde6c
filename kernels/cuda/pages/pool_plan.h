#pragma once

#include "kernels/cuda/pages/free_list.h"

namespace tessera::cuda {

// What kernels that walk the rows of a plan's slots share.

inline constexpr simt::LaunchShape kOneBlock{.threads = kPoolThreads,
                                             .shared_bytes = sizeof(BlockFreeList::Memory)};

template <class T>
struct Plan {  // a span as a kernel sees it
  const T* data;
  int32_t count;
};
template <class T>
Plan<T> plan_of(std::span<const T> span, Stream stream) {
  return {simt::mirror(span, stream), static_cast<int32_t>(span.size())};
}

constexpr int64_t slot_rows(const KvPool& pool) {
  return int64_t{pool.pages.layers} * pool.pages.kv_heads;
}

// Rows of the slots of a plan, one after the other.
template <class T, class SlotOf>
TESSERA_DEVICE int64_t planned_row(const KvPool& pool, const Plan<T>& plan, int64_t index,
                                   SlotOf&& slot) {
  return pool.pages.row_index(slot(plan.data[index / slot_rows(pool)]), 0, 0) +
         index % slot_rows(pool);
}

}  // namespace tessera::cuda
