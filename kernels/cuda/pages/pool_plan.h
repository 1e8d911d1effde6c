#pragma once

#include "kernels/cuda/pages/free_list.h"

namespace tessera::cuda {

// Helpers for kernels that walk the rows of a plan's slots.

inline constexpr simt::LaunchShape kOneBlock{.threads = kPoolThreads,
                                             .shared_bytes = sizeof(BlockFreeList::Memory)};

template <class T>
struct Plan {  // a span in device memory, for kernels
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

// Returns: row `index` in the concatenation of all rows of the plan's slots. slot(entry): its slot.
template <class T, class SlotOf>
TESSERA_DEVICE int64_t planned_row(const KvPool& pool, const Plan<T>& plan, int64_t index,
                                   SlotOf&& slot) {
  return pool.pages.row_index(slot(plan.data[index / slot_rows(pool)]), 0, 0) +
         index % slot_rows(pool);
}

}  // namespace tessera::cuda
