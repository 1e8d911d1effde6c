#pragma once

#include <cstdint>
#include <vector>

#include "engine/kv/slot_table.h"
#include "kernels/backend.h"
#include "kernels/kv/kv_arena.h"

namespace tessera {

// Growth of page-table rows by one KvCache::reserve. The rows of a compressed slot
// differ. So the host counts an upper bound of its pages until kv_resize has reported their number.
class RowGrowth {
 public:
  explicit RowGrowth(int32_t slots);

  // Requires: the last growth is settled.
  void begin();
  // pages: counted for the growth. compressed: an upper bound, to be settled.
  void add(const KvGrowth& growth, int64_t pages, bool compressed);
  bool empty() const { return grown_.empty(); }
  void run(KvArena& arena, const Backend& backend, Stream stream);  // kv_resize

  bool settled() const { return taken_.empty(); }
  // Replaces the pages counted for compressed slots by those taken. Waits for the backend if it has
  // not reported them yet. Appends the compressed slots to `compressed`.
  // Requires: not settled; the slots are still open.
  // Returns: pages that were counted and not taken.
  int64_t settle(const KvArena& arena, SlotTable& slots, std::vector<int32_t>& compressed);

 private:
  static constexpr int32_t kUnknown = -1;

  std::vector<KvGrowth> grown_;
  std::vector<int64_t> planned_;  // pages counted for each of grown_
  std::vector<int32_t> taken_;    // pages taken; kUnknown until kv_resize has written them
  bool uneven_ = false;           // one of the slots is compressed
};

}  // namespace tessera
