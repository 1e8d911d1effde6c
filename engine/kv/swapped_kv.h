#pragma once

#include <cstdint>
#include <utility>

#include "engine/kv/kv_usage.h"
#include "engine/kv/slot_table.h"
#include "engine/kv/swap_room.h"

namespace tessera {

// A swapped-out slot in host memory: a copy of its keys and values, and the cache's state of it.
// Holds no slot and no pages of the cache.
class SwappedKv {
 public:
  // Pages that swap_in() takes, on the rank that needs the most. Pages that the slot shared are
  // counted: it gets copies of its own.
  int64_t pages() const { return slot_.max_pages; }
  const KvUsage& usage() const { return usage_; }  // at the swap-out

 private:
  SwappedKv(const SlotState& slot, const KvUsage& usage, SwapRoom::Part part)
      : slot_(slot), usage_(usage), part_(std::move(part)) {}

  friend class KvCache;
  friend class KvPlanning;
  SlotState slot_;
  KvUsage usage_;
  SwapRoom::Part part_;
};

}  // namespace tessera
